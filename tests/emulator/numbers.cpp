// Checks what the kernels compute in fewer instructions than the specification, and what they assume: masses and bins by exponent
// for every float of a range, and bins by distance for some largest logits.
#include "../../kernels/numbers.cuh"

#include <cstdio>

namespace {

int fault(const char* what, float y) {
    printf("FAULT: %s at %a\n", what, double(y));
    return 1;
}

// Every float in ascending order, from -64, where masses have long been 0, to where 2^y rounds to 1.
constexpr u32 kFirst = 0xC2800000u, kLast = 0xB2000000u;

// The mass as src/sampling/mass.rs defines it.
u64 specified_mass(float y) {
    if (!(y >= -64.0f)) return 0;
    float n = std::nearbyint(y), power = __uint_as_float((u32)((int)n + 127) << 23);
    return (u64)(power_of_fraction(y - n) * (float)kMassOne * power);
}

// No value below a floor may be in a bin up to the one that the floor is for. A larger value is never in a later bin, so it is
// enough to check the next smaller value.
int floors_are_low_enough() {
    for (u32 seed = 0; seed < 4000; ++seed) {
        // Floats of all sizes and both signs, among them subnormals and the largest.
        float max = __uint_as_float(seed * 0x00106001u + (seed & 7));
        if (!(max > minus_infinity() && max < plus_infinity())) continue;
        for (u32 bin = 0; bin < kBins; ++bin) {
            u32 floor = floor_of_bins(max, bin), least = ascending(-3.402823466e+38f);
            if (floor < least) return fault("a floor below all values", max);
            if (floor > least && distance_bin(max, from_ascending(floor - 1)) <= bin) return fault("a floor is too high", max);
        }
    }
    return 0;
}

}  // namespace

int main() {
    u64 most = 0, floats = 0, falls = 0;
    u32 bin = kBins - 1;
    for (u32 bits = kFirst; bits >= kLast; --bits, ++floats) {
        float y = __uint_as_float(bits);
        u64 mass = mass_of_exponent(y);
        if (mass != specified_mass(y)) return fault("not the mass of the specification", y);
        // Half of this bound is what a float's rounding allows. A bound smaller than the kernels' holds, too.
        if (most > mass + (mass >> 17) + 1) return fault("a smaller exponent has a larger mass", y);
        falls += mass < most;
        most = mass > most ? mass : most;
        if (masses_are_below(y, most)) return fault("a mass counts as too small", y);
        if (exponent_bin(y) > bin) return fault("a larger exponent is in a later bin", y);
        bin = exponent_bin(y);
        if ((bin == kBins - 1) != (y < kFar)) return fault("the last bin has another exponent", y);
        if (!(y < kFar)) continue;
        if (mass_of_far_exponent(y) != mass) return fault("another mass", y);
        if (mass >> 28 != 0) return fault("a mass of more than 28 bits", y);
    }
    if (most != kMassOne || mass_of_exponent(__uint_as_float(kLast)) != kMassOne) return fault("not the mass of one", 0.0f);
    for (float y : {-64.5f, -1e9f, -3e38f, minus_infinity(), std::nanf("")}) {
        if (mass_of_exponent(y) != 0 || mass_of_far_exponent(y) != 0) return fault("a mass where there is none", y);
    }
    if (exponent_bin(0.0f) != 0 || exponent_bin(minus_infinity()) != kBins - 1) return fault("an end is in another bin", 0.0f);
    if (floors_are_low_enough() != 0) return 1;
    printf("%llu floats, of which %llu have less mass than one before\n", floats, falls);
}
