// Tensors: how their numbers are stored, and the numbers.
#include <algorithm>
#include <cstring>

#include "program.h"

namespace xnorpp {
namespace {

struct EncodingRow {
    const char *name;
    Dtype dtype;
};
constexpr EncodingRow kEncodings[] = {{"float32", Dtype::F32}, {"float16", Dtype::F16}, {"bits", Dtype::U8}, {"uint8", Dtype::U8},
                                      {"int8", Dtype::I8},     {"int16", Dtype::I16},   {"int32", Dtype::I32}};

using Places = std::map<std::string, int>;  // of tensors, by their names

Places places_of(const Program &p) {
    Places places;
    for (size_t i = 0; i < p.tensors.size(); i++) places[p.tensors[i].name] = (int)i;
    return places;
}

// The row of whole numbers that stand for real ones: each is multiplied by the factor of its index along the first axis.
void take_scale(const Program &p, const Places &places, Tensor &tensor, const Json &row, const std::string &where) {
    const std::string &name = text(at(row, "scale"), where + ": `scale`");
    const auto place = places.find(name);
    if (place == places.end()) throw Error(where + ": its `scale` " + quoted(name) + " is not in the file");
    const Tensor &scale = p.tensors[(size_t)place->second];
    if (tensor.encoding != Encoding::Int8 && tensor.encoding != Encoding::Int16)
        throw Error(where + ": only int8 and int16 numbers have a `scale`");
    const bool real = scale.encoding == Encoding::Float32 || scale.encoding == Encoding::Float16;
    if (!real || scale.shape != Shape{tensor.shape[0]})
        throw Error(where + ": its `scale` " + quoted(name) + " must be float32 or float16 of shape " + text_of({tensor.shape[0]}));
    tensor.scale = place->second;
    tensor.scale_data = scale.data, tensor.scale_encoding = scale.encoding;
}

float half_to_float(uint32_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ffu;
    if (exponent == 0) {
        const float small = (float)fraction * 5.9604644775390625e-08f;  // 2**-24
        return sign ? -small : small;
    }
    const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

}  // namespace

const char *name_of(Encoding encoding) { return encoding == Encoding::Untyped ? "U8" : kEncodings[(size_t)encoding].name; }

Encoding encoding_of(Dtype dtype) {
    for (size_t i = 0; i < sizeof kEncodings / sizeof *kEncodings; i++)
        if (dtype != Dtype::U8 && dtype == kEncodings[i].dtype) return (Encoding)i;
    return Encoding::Untyped;
}

// A program in the making states nothing but scales.
void parse_scales(Program &p, const Json &table) {
    object(table, "`tensors`");
    const Places places = places_of(p);
    for (size_t i = 0; i < table.keys().size(); i++) {
        const std::string where = "tensor " + quoted(table.keys()[i]);
        const auto found = places.find(table.keys()[i]);
        if (found == places.end()) throw Error(where + " has a `scale` and is not in the program");
        take_scale(p, places, p.tensors[(size_t)found->second], object(table.items()[i], where), where);
    }
}

// Version 2: the table `tensors` states the encoding of every tensor of the file.
void parse_encodings(Program &p, const Json &table) {
    object(table, "`tensors`");
    const Places places = places_of(p);
    std::map<std::string, const Json *> rows;
    for (size_t i = 0; i < table.keys().size(); i++) rows[table.keys()[i]] = &table.items()[i];
    for (Tensor &tensor : p.tensors) {
        const std::string where = "tensor " + quoted(tensor.name);
        const auto found = rows.find(tensor.name);
        if (found == rows.end()) throw Error(where + " has no row in `tensors`");
        const Json &row = object(*found->second, where);
        const std::string &encoding = text(at(row, "encoding"), where + ": `encoding`");
        const Encoding stored = tensor.encoding;  // what its dtype allows; U8 is Untyped
        bool known = false;
        for (size_t i = 0; i < sizeof kEncodings / sizeof *kEncodings; i++)
            if (encoding == kEncodings[i].name) tensor.encoding = (Encoding)i, known = true;
        if (!known)
            throw Error(where + ": encoding " + quoted(encoding, 40) + " is unknown; known are float32, float16, bits, uint8, int8, int16, int32");
        const bool byte = tensor.encoding == Encoding::Bits || tensor.encoding == Encoding::UInt8;
        if (byte ? stored != Encoding::Untyped : stored != tensor.encoding)
            throw Error(where + ": encoding " + encoding + " does not fit the dtype it is stored with");
        const bool scaled = p.opset > 1 && row.find("scale");
        only(row, {"encoding", tensor.encoding == Encoding::Bits ? "shape" : "encoding", scaled ? "scale" : "encoding"}, where, 2);
        if (scaled) take_scale(p, places, tensor, row, where);
        if (tensor.encoding == Encoding::Bits) {
            const Json &shape = list(at(row, "shape"), where + ": `shape`");
            bool right = shape.items().size() == tensor.shape.size();
            for (size_t i = 0; right && i < shape.items().size(); i++) {
                right = shape.items()[i].is(Json::Type::Integer) && shape.items()[i].integer >= 1 && shape.items()[i].integer <= (int64_t)1 << 35;
                const int64_t size = right ? shape.items()[i].integer : 0;
                right = right && (i + 1 < shape.items().size() ? size : (size + 7) / 8) == tensor.shape[i];
            }
            if (!right) throw Error(where + ": `shape` (=" + shape.brief() + ") of its bits does not fit the stored " + text_of(tensor.shape));
            tensor.length = shape.items().back().integer;
        }
        rows.erase(found);
    }
    if (!rows.empty()) throw Error("`tensors` has a row for " + quoted(rows.begin()->first) + ", which is not in the file");
}

// The encodings of U8 tensors that no table states: bits where they are filters, bytes otherwise.
void show_encodings(Program &p, bool draft) {
    for (Tensor &tensor : p.tensors) tensor.used_as = tensor.encoding;
    std::vector<int64_t> lengths(p.tensors.size(), -2);
    for (const Operation &op : p.ops)
        for (const auto &item : op.tensors) {
            Tensor &tensor = p.tensors[(size_t)item.second];
            if (tensor.encoding != Encoding::Untyped) continue;
            const Shape &source = p.values[(size_t)op.inputs[0]].shape;
            const bool bits = item.first == "weight";
            const int64_t length = !bits ? -1 : source[0] / (op.attrs.find("groups") ? op.integer("groups") : 1);
            int64_t &known = lengths[(size_t)item.second];
            if (draft && known != -2 && known != length) throw Error("tensor " + quoted(tensor.name) + " is used with two lengths of its bits");
            if (known == -2) known = length, tensor.used_as = bits ? Encoding::Bits : Encoding::UInt8;
        }
    for (size_t i = 0; i < lengths.size(); i++) {
        if (lengths[i] == -2) continue;
        if (draft) p.tensors[i].encoding = p.tensors[i].used_as;
        if (draft || p.tensors[i].length < 0) p.tensors[i].length = p.version > 1 ? lengths[i] : -1;
    }
}

std::vector<float> floats_of(const Tensor &tensor) {
    std::vector<float> out((size_t)tensor.elements());
    if (tensor.scale >= 0) {  // whole numbers are exact in float32, and each product is rounded once
        Tensor factors;
        factors.shape = {tensor.shape[0]}, factors.encoding = tensor.scale_encoding, factors.data = tensor.scale_data;
        const std::vector<float> scale = floats_of(factors);
        const std::vector<int32_t> whole = integers_of(tensor);
        const size_t row = out.size() / scale.size();
        for (size_t i = 0; i < out.size(); i++) out[i] = (float)whole[i] * scale[i / row];
    } else if (tensor.encoding == Encoding::Float32) {
        std::memcpy(out.data(), tensor.data, out.size() * 4);
    } else {
        for (size_t i = 0; i < out.size(); i++) out[i] = half_to_float((uint32_t)tensor.data[2 * i] | (uint32_t)tensor.data[2 * i + 1] << 8);
    }
    return out;
}

std::vector<int32_t> integers_of(const Tensor &tensor) {
    std::vector<int32_t> out((size_t)tensor.elements());
    for (size_t i = 0; i < out.size(); i++) {
        const uint8_t *from = tensor.data;
        switch (tensor.encoding) {
            case Encoding::Int8: out[i] = (int8_t)from[i]; break;
            case Encoding::Int16: out[i] = (int16_t)(from[2 * i] | from[2 * i + 1] << 8); break;
            case Encoding::Int32: std::memcpy(&out[i], from + 4 * i, 4); break;
            default: out[i] = from[i];
        }
    }
    return out;
}

}  // namespace xnorpp
