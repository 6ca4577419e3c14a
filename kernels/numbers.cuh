// The numbers of docs/numbers.md: widening, the order of tokens, masses (weights as integers) and thresholds. Each operation rounds
// once: compile with -fmad=false, so that an fma is only where one is written.
#pragma once
#include "params.cuh"

// The largest key of a token that has a chance: the keys of minus infinity come after it.
constexpr u64 kLastKey = 0xFF7FFFFFFFFFFFFFull;

// log2 of the mass of the most likely token: src/sampling/mass.rs.
constexpr u32 kMassBits = 40;
constexpr u64 kMassOne = 1ull << kMassBits;

__device__ inline float minus_infinity() { return __uint_as_float(0xFF800000u); }
__device__ inline float plus_infinity() { return __uint_as_float(0x7F800000u); }
__device__ inline bool has_chance(float x) { return x > minus_infinity(); }

// Number formats of logits, which are read in vectors of 16 bytes.
struct F32 {
    static constexpr u32 kPerVector = 4, kFormat = kRowF32, kMinusInfinity = 0xFF800000u;
    __device__ static float widen(u32 word, u32) { return __uint_as_float(word); }
};

struct Bf16 {
    static constexpr u32 kPerVector = 8, kFormat = kRowBf16, kMinusInfinity = 0xFF80u;
    __device__ static float widen(u32 word, u32 half) {
        return __uint_as_float(half == 0 ? word << 16 : word & 0xFFFF0000u);
    }
};

struct F16 {
    static constexpr u32 kPerVector = 8, kFormat = kRowF16, kMinusInfinity = 0xFC00u;
    __device__ static float widen(u32 word, u32 half) {
        u32 bits = half == 0 ? word & 0xFFFFu : word >> 16;
        u32 sign = (bits & 0x8000u) << 16;
        u32 rest = (bits & 0x7FFFu) << 13;
        if ((bits & 0x7C00u) == 0x7C00u) return __uint_as_float(sign | 0x7F800000u | rest);
        // The biases of the exponents differ by 112. The product is exact, also for subnormals.
        float value = __uint_as_float(rest) * __uint_as_float(0x77800000u);
        return __uint_as_float(sign | __float_as_uint(value));
    }
};

// The larger of the two; NaN if either is.
#ifndef CROUPIER_EMULATOR
__device__ inline float max_or_nan(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

// A right shift that gives 0 for 64 or more, as PTX defines it. In C++ such a shift is undefined.
__device__ inline u64 shift_down(u64 value, u32 by) {
    u64 rest;
    asm("shr.u64 %0, %1, %2;" : "=l"(rest) : "l"(value), "r"(by));
    return rest;
}
#endif

__device__ inline u32 word_of(const uint4& vector, u32 word) {
    return word == 0 ? vector.x : word == 1 ? vector.y : word == 2 ? vector.z : vector.w;
}

template <class Element>
__device__ float element(const uint4& vector, u32 i) {
    constexpr u32 per_word = Element::kPerVector / 4;
    return Element::widen(word_of(vector, i / per_word), i % per_word);
}

// Floats as integers in ascending order; -0 is made +0 first.
__device__ inline u32 ascending(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ inline float from_ascending(u32 ordered) {
    return __uint_as_float(ordered >> 31 ? ordered & 0x7FFFFFFFu : ~ordered);
}

// ~ascending(x) in fewer instructions.
__device__ inline u32 descending(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits ^ (~(u32)((int)bits >> 31) & 0x7FFFFFFFu);
}

// A token's key: its place in the order of tokens as an integer, where a smaller key comes first. The order is by descending logit,
// then by ascending token id.
__device__ inline u64 key_of(u32 token, float x) { return (u64)descending(x) << 32 | token; }
__device__ inline u32 token_of(u64 key) { return (u32)key; }
__device__ inline float logit_of(u64 key) { return from_ascending(~(u32)(key >> 32)); }

__device__ inline float exponent(float x, float max, float scale) { return (x - max) * scale; }

// 2^f for |f| <= 1/2.
__device__ inline float power_of_fraction(float f) {
    float p = 0.0013264727f;
    p = fmaf(p, f, 0.009671513f);
    p = fmaf(p, f, 0.055507336f);
    p = fmaf(p, f, 0.24022242f);
    p = fmaf(p, f, 0.693147f);
    return fmaf(p, f, 1.0f);
}

// floor(2^y * 2^40) for y <= 0. Weights below 2^-40 have no mass, and neither has NaN. There is no branch, so that the masses of
// several tokens are computed in parallel.
__device__ inline u64 mass_of_exponent(float y) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
    const float magic = 12582912.0f;
    float least = fmaxf(y, -41.0f);
    float shifted = least + magic;
    float f = least - (shifted - magic);
    u32 bits = __float_as_uint(power_of_fraction(f));
    // The significand of p, with its leading 1 at bit 31. The shift also moves the lowest bit of the exponent there.
    u32 digits = bits << 8 | 0x80000000u;
    // p = digits * 2^(e - 31) and 2^y = p * 2^n, so the mass is digits * 2^(9 + n + e). Below 2^-40 all digits are shifted out.
    u32 n = __float_as_uint(shifted) - __float_as_uint(magic), e = (bits >> 23) - 127;
    return shift_down((u64)digits << 32, 23 - n - e);
}

// Exponents below this have masses of 28 bits: 16 of them can be added in 32 bits.
constexpr float kFar = -12.0f;

// The same for y < kFar, in fewer instructions: n + 40 is added to the exponent of p. tests/emulator/numbers.cpp compares the two
// for every such float.
__device__ inline u32 mass_of_far_exponent(float y) {
    const float magic = 12582912.0f + kMassBits;
    float least = fmaxf(y, -41.0f);
    float shifted = least + magic;
    float p = power_of_fraction(least - (shifted - magic));
    return (u32)__uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// Whether no exponent up to y has a mass of at least `need`. Masses do not quite rise with exponents: where 2^f is rounded, they
// may fall by a few units in the last place of a float. The same test checks the bound on this for every float.
__device__ inline bool masses_are_below(float y, u64 need) {
    u64 mass = mass_of_exponent(y);
    return mass + (mass >> 16) + 1 < need;
}

// The mass that a top-p prefix must reach: ceil(fraction * total / 2^32), but at least 1, so that one token stays.
__device__ inline u64 top_p_need(u64 fraction, u64 total) {
    u64 low = fraction * total;
    u64 high = __umul64hi(fraction, total);
    u64 up = low + 0xFFFFFFFFull;
    high += up < low;
    u64 need = high << 32 | up >> 32;
    return need > 0 ? need : 1;
}

// floor(uniform * total / 2^64).
__device__ inline u64 draw_point(u64 uniform, u64 total) { return __umul64hi(uniform, total); }

// The strength of a penalty on a token, by the distance to its latest occurrence: Decay::strength in src/params/penalties.rs.
__device__ inline float strength_of(const TokenAdjust& adjust, const RowJob& job) {
    u32 distance = (job.place - (adjust.flags >> kPlaceShift)) & 0xFFFFu;
    u32 over = distance > job.last_n ? distance - job.last_n : 0;
    return fmaxf(1.0f - (float)over / ((float)job.decay_n + 1.0f), 0.0f);
}

// The logit after ban, bias and penalties, operation by operation as in src/sampling/adjust.rs.
__device__ CROUPIER_ONCE inline float adjusted_logit(TokenAdjust adjust, float x, const RowJob& job) {
    if (adjust.flags & kBanned) return minus_infinity();
    bool is_late = adjust.flags & kLate, subtracts_first = job.flags & kSubtractFirst;
    x = x + (is_late ? 0.0f : adjust.bias);
    float repetition = job.repetition, strength = 1.0f;
    bool repeats = (adjust.flags & kSeen) && repetition != 1.0f;
    if (job.decay_n > 0) {
        strength = strength_of(adjust, job);
        repetition = 1.0f + (repetition - 1.0f) * strength;
    }
    // At full strength this multiplies by 1, which is exact.
    float by_count = (float)adjust.output_count * job.frequency * strength, by_presence = job.presence * strength;
    bool counts = adjust.output_count > 0;
    if (counts && subtracts_first) x = x - by_count - by_presence;
    if (repeats) x = x > 0.0f ? x / repetition : x * repetition;
    if ((adjust.flags & kPrompt) && job.encoder != 1.0f) x = x > 0.0f ? x * job.encoder : x / job.encoder;
    if (counts && !subtracts_first) x = x - by_count - by_presence;
    bool ends = (adjust.flags & kEnds) && job.length != 0.0f && x > minus_infinity() && x < plus_infinity();
    if (ends) x = fminf(x + fabsf(x) * job.length, 3.402823466e+38f);
    return is_late ? x + adjust.bias : x;
}

// Rounds a real number from 0 to 2^52 to the nearest integer, ties to even: the doubles from 2^52 to 2^53 are exactly the integers,
// one bit apart.
__device__ inline u64 count(double real) {
    return (u64)__double_as_longlong(real + 4503599627370496.0) - 0x4330000000000000ull;
}

// The inverse, which is exact for integers up to 2^52.
__device__ inline double real(u64 integer) {
    return __hiloint2double((int)(integer >> 32) + 0x43300000, (int)integer) - 4503599627370496.0;
}

// The upper 14 bits of the largest distances in bin 0.
constexpr u32 kFirstDistance = (127 - 10) << 5;

// The bin of a logit by its distance from the largest one, in steps of 1/32 of the distance, so that the scale of the row does not
// matter.
__device__ inline u32 distance_bin(float max, float x) {
    // The distance is not negative. Adding 0 turns -0, from zeros of different sign, into +0.
    u32 bits = __float_as_uint((max - x) + 0.0f) >> 18;
    u32 bin = bits > kFirstDistance ? bits - kFirstDistance : 0;
    return bin < kBins ? bin : kBins - 1;
}

// The bin of a token by its mass: exponents from kFar on in steps of 1/42.5, and the last bin for all less likely tokens. Adding
// 2^23 rounds to an integer and leaves it in the low bits.
constexpr float kBinsOfExponent = -42.5f;
__device__ inline u32 exponent_bin(float y) {
    return y >= kFar ? __float_as_uint(y * kBinsOfExponent + 8388608.0f) & (kBins - 1) : kBins - 1;
}

// Each token in a bin by mass has a mass of at most 2 to the power of this. Not used for the last bin.
__device__ inline u32 most_bits_of_bin(u32 bin) { return kMassBits - (bin > 0 ? (2 * bin - 1) / 85 : 0); }

// The floor of the bins up to this one, as an integer in ascending order: no logit with a chance in these bins is below it. Other
// logits may be above it, since those of the next bin may be as near as rounding allows.
__device__ inline u32 floor_of_bins(float max, u32 bin) {
    constexpr u32 least = ~(u32)(kLastKey >> 32);
    if (bin == kBins - 1) return least;
    // A rounded distance below this bound is an exact distance below it, since the bound is a float itself. And a logit above the
    // exact difference is not below the float that the difference is rounded to.
    u32 floor = ascending(max - __uint_as_float((kFirstDistance + bin + 1) << 18));
    return floor > least ? floor : least;
}
