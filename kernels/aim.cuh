// What a pass looks for, and where it brings what it finds.
#pragma once
#include "numbers.cuh"

// Sums by chunk, or one sum where only that is asked for; both are sums of the same boxes.
enum Sink { kToBins, kToChunks, kToTotal, kToList };
enum Binning { kByDistance, kByValue, kByExponent, kFromOrigin };

struct Pass {
    // Tokens whose keys lie between these, both included ...
    u64 first_key;
    u64 last_key;
    // ... and whose mass is at least this, weigh their mass, or 1.
    u64 need;
    float max;
    float scale;
    bool adjusted;
    bool counts;
    Sink sink;
    // Of a list of the row as sent: the mass of all tokens besides, whatever the range is.
    bool with_total;
    // Bins by distance from the largest logit, by value, (origin - value) >> shift, or by mass. Counts into sums leave out the tokens
    // before `origin` if it says so.
    Binning binning;
    u32 origin;
    u32 shift;

    __device__ u64 mass(float x) const { return mass_of_exponent(exponent(x, max, scale)); }

    // Whether sums by chunk come of it, or one.
    __device__ bool sums() const { return sink == kToChunks || sink == kToTotal || with_total; }
    // Every token that has a chance weighs its mass.
    __device__ bool weighs_all() const { return !counts && first_key == 0 && last_key == kLastKey && need == 0; }
    // Every token that has a chance, and what it weighs is its mass, in bins by mass.
    __device__ bool bins_all() const { return sink == kToBins && binning == kByExponent && weighs_all(); }
    // ... in sums.
    __device__ bool sums_all() const { return with_total || (sums() && weighs_all()); }
    // The first tokens of the order, down to a value: of equal tokens all.
    __device__ bool begins_the_order() const { return first_key == 0 && need == 0 && (u32)last_key == ~0u; }
    // No masses are asked for.
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

    // Whether a token is one of those weighed.
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
