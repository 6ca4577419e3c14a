// What a pass over a row (pass.cuh) looks for, and where its results go.
#pragma once
#include "numbers.cuh"

// Where the results go: into bins, into sums by chunk, into one sum if only that is asked for, or into a list. Bins and sums use
// the same part of a box, which is what a block tells its team (team.cuh).
enum Sink { kToBins, kToChunks, kToTotal, kToList };
enum Binning { kByDistance, kByValue, kByExponent, kFromOrigin };

struct Pass {
    // A token counts if its key (its place in the order of tokens) is between these, both included, ...
    u64 first_key;
    u64 last_key;
    // ... and its mass is at least this. It weighs its mass, or 1 if `counts`.
    u64 need;
    float max;
    float scale;
    bool adjusted;
    bool counts;
    Sink sink;
    // With a list of the row as sent: also sums the masses of all tokens, whatever the range is.
    bool with_total;
    // Bins are by distance from the largest logit, by value, which is (origin - value) >> shift, or by mass. With kFromOrigin,
    // which is for counts into sums, tokens with ids below `origin` are left out.
    Binning binning;
    u32 origin;
    u32 shift;

    __device__ u64 mass(float x) const { return mass_of_exponent(exponent(x, max, scale)); }

    // Whether the pass makes sums: by chunk, or a total.
    __device__ bool sums() const { return sink == kToChunks || sink == kToTotal || with_total; }
    // Whether every token that has a chance weighs its mass.
    __device__ bool weighs_all() const { return !counts && first_key == 0 && last_key == kLastKey && need == 0; }
    // Whether every token that has a chance weighs its mass and goes into a bin by mass.
    __device__ bool bins_all() const { return sink == kToBins && binning == kByExponent && weighs_all(); }
    // Whether every token that has a chance weighs its mass and goes into a sum.
    __device__ bool sums_all() const { return with_total || (sums() && weighs_all()); }
    // Whether the range is the first tokens of the order down to a value, with all tokens of that value.
    __device__ bool begins_the_order() const { return first_key == 0 && need == 0 && (u32)last_key == ~0u; }
    // Whether no masses are needed.
    __device__ bool only_counts() const { return counts && need == 0; }

    __device__ bool has(u32 token, float x) const {
        u64 key = key_of(token, x);
        return key >= first_key && key <= last_key;
    }

    __device__ u64 weight(u32 token, float x) const {
        if (only_counts()) return has(token, x);
        u64 own = mass(x);
        own = has(token, x) && own >= need ? own : 0;
        return counts ? own > 0 : own;
    }

    // Whether a token is among those that are weighed.
    __device__ bool keeps(u32 token, float x) const {
        u64 key = key_of(token, x);
        return first_key <= key && key <= last_key && (need == 0 || mass(x) >= need);
    }

    __device__ u32 bin_of_value(u32 ordered) const {
        if (binning == kByValue) return (origin - ordered) >> shift;
        float x = from_ascending(ordered);
        return binning == kByDistance ? distance_bin(max, x) : exponent_bin(exponent(x, max, scale));
    }

    __device__ u32 bin_of(float x) const { return bin_of_value(ascending(x)); }
};
