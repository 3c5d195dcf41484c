#include "container.h"

#include <algorithm>

#include "json.h"
#include "sha256.h"

namespace xnorpp {
namespace {

struct DtypeRow {
    const char *name;
    size_t bytes;
    int since;  // the first version of the format that has it
};
constexpr DtypeRow kDtypes[] = {{"F32", 4, 1}, {"F16", 2, 1}, {"U8", 1, 1}, {"I8", 1, 2}, {"I16", 2, 2}, {"I32", 4, 2}};
constexpr int kNewest = 2;
constexpr size_t kMostAxes = 8;

std::string allowed_dtypes(int version) {
    std::string out;
    for (const DtypeRow &row : kDtypes)
        if (row.since <= version) out += (out.empty() ? "" : ", ") + std::string(row.name);
    return out;
}

bool is_count(const Json &value, int64_t low, int64_t high) {
    return value.is(Json::Type::Integer) && value.integer >= low && value.integer <= high;
}

StoredTensor tensor_of(const std::string &name, const Json &entry, size_t data, int version) {
    const std::string where = "tensor " + quoted(name);
    const Json *dtype = entry.find("dtype"), *shape = entry.find("shape"), *offsets = entry.find("data_offsets");
    if (!entry.is(Json::Type::Object)) throw Error(where + " must be a JSON object");
    if (!dtype || !shape || !offsets || entry.items().size() != 3)
        throw Error(where + " must have `dtype`, `shape` and `data_offsets`");
    StoredTensor tensor;
    tensor.name = name;
    bool known = false;
    for (size_t i = 0; i < sizeof kDtypes / sizeof *kDtypes; i++)
        if (kDtypes[i].since <= version && dtype->is(Json::Type::Text) && dtype->text() == kDtypes[i].name)
            tensor.dtype = (Dtype)i, known = true;
    if (!known) throw Error(where + " has dtype " + dtype->brief() + "; allowed are " + allowed_dtypes(version));
    const size_t most_axes = version == 1 ? 4 : kMostAxes;
    const int64_t most = (int64_t)kMostFile;
    bool right = shape->is(Json::Type::List) && !shape->items().empty() && shape->items().size() <= most_axes;
    for (size_t i = 0; right && i < shape->items().size(); i++) right = is_count(shape->items()[i], 1, most);
    if (!right)
        throw Error(where + " has shape " + shape->brief() + "; 1 to " + std::to_string(most_axes) + " positive integers are needed");
    right = offsets->is(Json::Type::List) && offsets->items().size() == 2;
    for (size_t i = 0; right && i < 2; i++) right = is_count(offsets->items()[i], 0, most);
    if (!right)
        throw Error(where + " has offsets " + offsets->brief() + "; two of 0 to " + std::to_string(most) + " are needed");
    tensor.begin = (size_t)offsets->items()[0].integer, tensor.end = (size_t)offsets->items()[1].integer;
    const size_t last = std::max(tensor.begin, tensor.end);
    if (last > data)
        throw Error(where + " ends at " + std::to_string(last) + " and the file's data at " + std::to_string(data) + "; it is cut off");
    uint64_t bytes = kDtypes[(size_t)tensor.dtype].bytes;
    for (const Json &size : shape->items()) {
        tensor.shape.push_back(size.integer);
        if (bytes <= data) bytes *= (uint64_t)size.integer;  // below 2**32 * 2**32, and no further once it is too large
    }
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != bytes)
        throw Error(where + " has " + std::to_string((int64_t)tensor.end - (int64_t)tensor.begin) +
                    " bytes, which is not its shape's size");
    return tensor;
}

const std::string *text_at(const Json &object, const char *key) {
    const Json *value = object.find(key);
    return value && value->is(Json::Type::Text) ? &value->text() : nullptr;
}

int version_of(const Json &meta) {
    const std::string *format = text_at(meta, "format"), *version = text_at(meta, "version");
    if (format && *format == "xnorpp-checkpoint")
        throw Error("this is an xnorpp checkpoint; pack it first with `xnorpp pack`");
    if (!format || *format != "xnorpp") throw Error("`format` is not xnorpp; this is a safetensors file of something else");
    for (int known = 1; known <= kNewest; known++)
        if (version && *version == std::to_string(known)) return known;
    const Json *given = meta.find("version");
    throw Error("format version " + (given ? given->brief() : "null") + " is unknown; this reader knows 1 to " +
                std::to_string(kNewest) + ", a newer release of xnorpp may know it");
}

std::string checksum_of(const Container &file) {
    Sha256 digest;
    digest.add(file.program);
    for (const StoredTensor &tensor : file.tensors) {
        std::string line = "\n" + tensor.name + " " + name_of(tensor.dtype) + " ";
        for (size_t i = 0; i < tensor.shape.size(); i++) line += (i ? "," : "") + std::to_string(tensor.shape[i]);
        digest.add(line);
    }
    digest.add("\n", 1);
    digest.add(file.data, file.size);
    return "sha256:" + digest.hex();
}

}  // namespace

size_t bytes_of(Dtype dtype) { return kDtypes[(size_t)dtype].bytes; }
const char *name_of(Dtype dtype) { return kDtypes[(size_t)dtype].name; }

LimitError beyond_limit(const std::string &needs, const char *name, uint64_t limit) {
    return {"this program needs " + needs + ", and `" + name + "` of `limits` allows " + std::to_string(limit), name};
}

Container read_container(const uint8_t *bytes, size_t size, uint64_t file_bytes) {
    const std::string has = std::to_string(size);
    if (size > file_bytes)
        throw LimitError("the file has " + has + " bytes, and `file_bytes` of `limits` allows " + std::to_string(file_bytes), "file_bytes");
    if (size < 8) throw Error("the file has " + has + " bytes; it is cut off before its header");
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)bytes[i] << 8 * i;
    if (length < 2 || length > kMostHeader)
        throw Error("the header length " + std::to_string(length) + " is out of range; this is no packed model");
    if (8 + length > size)
        throw Error("the header needs " + std::to_string(8 + length) + " bytes and the file has " + has + "; it is cut off");
    const Json header = parse_json((const char *)bytes + 8, (size_t)length, "the header");
    if (!header.is(Json::Type::Object)) throw Error("the header must be a JSON object");
    const Json *meta = header.find("__metadata__");
    if (!meta || !meta->is(Json::Type::Object)) throw Error("`__metadata__` must be a JSON object");
    Container file;
    file.version = version_of(*meta);
    file.data = bytes + 8 + length, file.size = size - 8 - (size_t)length;
    for (size_t i = 0; i < header.keys().size(); i++)
        if (&header.items()[i] != meta)
            file.tensors.push_back(tensor_of(header.keys()[i], header.items()[i], file.size, file.version));
    std::stable_sort(file.tensors.begin(), file.tensors.end(), [](const StoredTensor &a, const StoredTensor &b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    size_t end = 0;
    for (const StoredTensor &tensor : file.tensors) {
        if (tensor.begin != end)
            throw Error("tensor " + quoted(tensor.name) + " begins at " + std::to_string(tensor.begin) + "; the one before ends at " +
                        std::to_string(end));
        end = tensor.end;
    }
    if (end != file.size)
        throw Error("the tensors end at " + std::to_string(end) + " and the file's data at " + std::to_string(file.size));
    const std::string *program = text_at(*meta, "program"), *checksum = text_at(*meta, "checksum");
    if (!program) throw Error("`program` must be a text");
    file.program = *program;
    if (!checksum || *checksum != checksum_of(file)) throw Error("the checksum does not match; the file is damaged");
    return file;
}

}  // namespace xnorpp
