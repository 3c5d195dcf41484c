// Numbers that move and stay as they are.
#include "producer.cuh"

// number: rank, then for each axis of the result its size, and its step in channels and in pixels of the source.
XN_INLINE void permuted_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const int rank = a.number[0];
    long rest = pixel_of(a, p), pixel = 0, channel = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
        const int size = a.number[1 + axis];
        pixel += rest % size * a.number[17 + axis];
        channel += rest % size * a.number[9 + axis];
        rest /= size;
    }
    EACH_CHANNEL(v[i] = source_at(a, p.image, pixel + (long)c * a.number[17], (int)(channel + (long)c * a.number[9])))
}

XN_INLINE void reshaped_values(const PlainArguments& a, const Place& p, float (&v)[8]) {
    const long wide = (long)a.oh * a.ow, pixels = (long)a.h * a.w, first = pixel_of(a, p);
    EACH_CHANNEL(const long at = c * wide + first; v[i] = source_at(a, p.image, at % pixels, (int)(at / pixels)))
}

PLAIN(permute, permuted_values(a, p, v))
PLAIN(reshape, reshaped_values(a, p, v))
