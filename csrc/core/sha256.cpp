#include "sha256.h"

#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define XNORPP_SHA_INSTRUCTIONS
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace xnorpp {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

inline uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

#if defined(XNORPP_SHA_INSTRUCTIONS)
bool has_instructions() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 19) || !(c & 1u << 9)) return false;  // SSE4.1, SSSE3
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29);
}

// The same with the processor's instructions: loading a model is mostly this otherwise. Four rounds at a time; `m` holds the
// last sixteen words of the schedule.
__attribute__((target("sha,sse4.1,ssse3"))) void fast_blocks(uint32_t *state, const uint8_t *from, size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xF0);
    for (; count; count--, from += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i m[4];
        for (int i = 0; i < 4; i++) m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(from + 16 * i)), swap);
        for (int i = 0; i < 16; i++) {
            __m128i words = m[i & 3];
            if (i >= 4) {
                words = _mm_sha256msg1_epu32(m[i & 3], m[(i + 1) & 3]);
                words = _mm_add_epi32(words, _mm_alignr_epi8(m[(i + 3) & 3], m[(i + 2) & 3], 4));
                m[i & 3] = words = _mm_sha256msg2_epu32(words, m[(i + 3) & 3]);
            }
            const __m128i keyed = _mm_add_epi32(words, _mm_loadu_si128((const __m128i *)(kRound + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keyed);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keyed, 0x0E));
        }
        abef = _mm_add_epi32(abef, abef_before), cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    abcd = _mm_shuffle_epi32(abef, 0x1B), efgh = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(abcd, efgh, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(efgh, abcd, 8));
}
#endif

}  // namespace

void Sha256::blocks(const uint8_t *from, size_t count) {
#if defined(XNORPP_SHA_INSTRUCTIONS)
    static const bool fast = has_instructions();
    if (fast) return fast_blocks(state_, from, count);
#endif
    for (; count; count--, from += 64) {
        uint32_t w[64];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)from[4 * i] << 24 | (uint32_t)from[4 * i + 1] << 16 | (uint32_t)from[4 * i + 2] << 8 | from[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            const uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
        }
        uint32_t s[8];
        std::memcpy(s, state_, sizeof s);
        for (int i = 0; i < 64; i++) {
            const uint32_t t1 = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + w[i];
            const uint32_t t2 = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + t1, s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++) state_[i] += s[i];
    }
}

void Sha256::add(const void *bytes, size_t count) {
    const auto *from = (const uint8_t *)bytes;
    length_ += count;
    if (held_) {
        const size_t room = 64 - held_, part = count < room ? count : room;
        if (part) std::memcpy(rest_ + held_, from, part);
        held_ += part, from += part, count -= part;
        if (held_ < 64) return;
        blocks(rest_, 1), held_ = 0;
    }
    blocks(from, count / 64);
    held_ = count % 64;
    if (held_) std::memcpy(rest_, from + count - held_, held_);
}

std::string Sha256::hex() {
    const uint64_t bits = length_ * 8;
    const uint8_t one = 0x80, zero = 0;
    add(&one, 1);
    while (held_ != 56) add(&zero, 1);
    uint8_t tail[8];
    for (int i = 0; i < 8; i++) tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    add(tail, 8);
    std::string text;
    for (const uint32_t word : state_)
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
    return text;
}

}  // namespace xnorpp
