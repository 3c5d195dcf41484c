// Turns a step's stages into an `Epilogue` with addresses in one context's arena.
#include "engine.h"

namespace xnorpp {
namespace {

bool is_act(StageKind kind) {
    return kind == StageKind::Relu || kind == StageKind::Prelu || kind == StageKind::Hardtanh;
}

Act act_of(StageKind kind) {
    return kind == StageKind::Relu ? Act::Relu : kind == StageKind::Prelu ? Act::Prelu : Act::Hardtanh;
}

// PReLU with slopes above 0 and at most 1 is a maximum (with every other slope an infinity could become a NaN).
bool is_leaky(const Stage &stage, int channels) {
    bool leaky = stage.kind == StageKind::Prelu;
    for (int c = 0; leaky && c < channels; c++) leaky = stage.a[c] > 0 && stage.a[c] <= 1;
    return leaky;
}

// The places of the fused line, in order.
enum Place { kMap, kAffine, kAct, kResidual, kAffine2, kAct2, kAffine3, kStore, kSign, kEnd };

// Where a stage fits at or behind `from`; kEnd where it does not.
Place place_of(const StageSpec &stage, int from) {
    Place place = kEnd;
    if (stage.kind == StageKind::Map) place = kMap;
    else if (stage.kind == StageKind::Affine) place = from <= kAffine ? kAffine : from <= kAffine2 ? kAffine2 : kAffine3;
    else if (is_act(stage.kind)) place = from <= kAct ? kAct : kAct2;
    else if (stage.kind == StageKind::AddValue && !stage.which) place = kResidual;
    else if (stage.kind == StageKind::Store) place = kStore;
    else if (stage.kind == StageKind::Sign && !stage.full.as()) place = kSign;
    return place < from ? kEnd : place;
}

}  // namespace

bool is_fusable(const std::vector<StageSpec> &stages) {
    int from = kMap;
    for (const StageSpec &stage : stages) {
        const Place place = place_of(stage, from);
        if (place == kEnd) return false;
        from = place + 1;
    }
    return true;
}

Epilogue Engine::resolve(const Step &step, char *arena, std::vector<Stage> &stages) const {
    for (const StageSpec &spec : step.stages) {
        Stage stage{};
        stage.kind = spec.kind;
        stage.a = spec.a.as<const float>();
        stage.b = spec.b.as<const float>();
        stage.map = spec.map.as<const float>();
        stage.full = spec.full.as<const float>();
        stage.flip = spec.flip.as<const uint32_t>();
        stage.lo = spec.lo, stage.hi = spec.hi, stage.which = spec.which;
        if (spec.value >= 0) {
            const ValueSpec &value = values_[(size_t)spec.value];
            stage.value = arena + value.offset;
            stage.stride = spec.spread == Spread::Channel || spec.spread == Spread::One ? 0 : value.stride;
        } else if (spec.kind == StageKind::AddValue) {  // a constant
            stage.value = spec.full.as();
            stage.stride = spec.spread == Spread::Channel ? 0 : (int)round_up((size_t)step.c, 16);
        }
        stages.push_back(stage);
    }
    Epilogue e{};
    e.stages = stages.data();
    e.count = (int)stages.size();
    e.channels = step.c;
    e.full_stride = (int)round_up((size_t)step.c, 16);
    e.fused = is_fusable(step.stages);
    if (!e.fused) return e;
    int from = kMap;
    for (size_t i = 0; i < stages.size(); i++) {
        const Stage &s = stages[i];
        const Place place = place_of(step.stages[i], from);
        from = place + 1;
        switch (place) {
            case kMap: e.map = s.a; break;
            case kAffine: e.mult = s.a, e.add = s.b; break;
            case kAct:
                e.act = is_leaky(s, step.c) ? Act::Leaky : act_of(s.kind);
                e.slope = s.a, e.lo = s.lo, e.hi = s.hi;
                break;
            case kAffine2: e.mult2 = s.a, e.add2 = s.b; break;
            case kAct2: e.act2 = act_of(s.kind), e.slope2 = s.a, e.lo2 = s.lo, e.hi2 = s.hi; break;
            case kAffine3: e.mult3 = s.a, e.add3 = s.b; break;
            case kResidual: e.residual = (const float *)s.value, e.residual_stride = s.stride; break;
            case kStore: e.out = (float *)s.value, e.out_stride = s.stride; break;
            case kSign:
                e.bits = (uint8_t *)s.value, e.bits_stride = s.stride;
                e.threshold = s.a, e.flip = s.flip, e.sign_map = s.map;
                break;
            case kEnd: break;
        }
    }
    // A sign that is all there is: its own factor is as good as the line's, and that line is known at compile time.
    const bool sign_alone = !e.map && !e.mult && e.act == Act::None && !e.residual && !e.mult2 && !e.mult3 && e.act2 == Act::None &&
                            !e.out;
    if (e.sign_map && sign_alone) e.map = e.sign_map, e.sign_map = nullptr;
    e.limits = step.limits.as<const int16_t>(), e.turn = step.turn.as<const uint32_t>();
    return e;
}

}  // namespace xnorpp
