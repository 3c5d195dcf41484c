// Maxima before floats. A convolution over an image gives whole sums; between sum and max pool stand only factors, sums
// and activations that never turn downwards, and each rounds monotonely: the greatest float is the float of the greatest sum
// (of the smallest, in a channel with a negative factor, whose sums are kept with all bits turned round, which reverses
// their order). So the pool takes maxima of sums, and only a quarter of the pixels, those that are left, become floats.
#include <cmath>

#include "engine.h"

namespace xnorpp {

void make_toward(Step &step, const Step &next) {
    const Pool &p = next.pool;
    const bool usual = p.kh == 3 && p.kw == 3 && p.sh == 2 && p.sw == 2 && p.ph == 1 && p.pw == 1 && p.dh == 1 && p.dw == 1;
    if (!step.image || step.image->source != Source::ImagePair || !usual) return;
    if ((p.oh - 1) * 2 >= p.h || p.ow != (p.w + 1) / 2) return;
    if (step.stages.empty() || step.stages.back().kind != StageKind::Store) return;
    // The pool's own line takes the convolution's in front of it; a factor of its own would stand at the same place.
    for (const StageSpec &stage : next.stages)
        if (stage.kind != StageKind::Store && (stage.kind != StageKind::Sign || stage.map.as() || stage.full.as())) return;
    if (!is_fusable(next.stages)) return;
    int affines = 0, acts = 0;
    for (size_t i = 0; i + 1 < step.stages.size(); i++) {
        const StageSpec &stage = step.stages[i];
        if (!never_falls(stage, step.c)) return;
        if (stage.kind == StageKind::Affine ? acts || affines++ : acts++) return;
    }
    const Conv &k = step.image->conv;
    Buffer toward(round_up((size_t)step.c, kBlock) * 4);
    for (int c = 0; c < step.c; c++) {
        if (!(k.scale[c] > 0)) return;
        for (const float end : {-2147483648.0f, 2147483648.0f}) {  // what a sum can be at most: no NaN in between
            float v = end * k.scale[c];
            if (k.bias) v += k.bias[c];
            if (!std::isfinite(v)) return;
            for (size_t i = 0; i + 1 < step.stages.size(); i++)
                if (!std::isfinite(v = after(step.stages[i], c, v))) return;
        }
        if (affines && step.stages[0].a.as<const float>()[c] < 0) toward.as<int32_t>()[c] = -1;
    }
    step.toward = std::move(toward);
}

}  // namespace xnorpp
