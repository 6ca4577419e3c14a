// What a pass looks for, and what is done with a list of tokens in shared memory. All threads of a block call the list's
// functions and get the same result.
#pragma once
#include "block.cuh"
#include "numbers.cuh"

enum Sink { kToBins, kToChunks, kToList };
enum Binning { kByDistance, kByValue, kByToken };

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
    // Bins by distance from the largest logit; by value, (origin - value) >> shift; by token, from `origin` on or not.
    Binning binning;
    u32 origin;
    u32 shift;

    __device__ u64 mass(float x) const { return mass_of_exponent(exponent(x, max, scale)); }

    __device__ u64 weight(u32 token, float x) const {
        u64 key = key_of(token, x);
        if (key < first_key || key > last_key) return 0;
        if (counts && need == 0) return 1;
        u64 own = mass(x);
        return own < need ? 0 : counts ? 1 : own;
    }

    // Whether a token is one of those weighed.
    __device__ bool keeps(u32 token, float x) const {
        u64 key = key_of(token, x);
        return first_key <= key && key <= last_key && (need == 0 || mass(x) >= need);
    }

    __device__ u32 bin_of_value(u32 ordered) const {
        return binning == kByDistance ? distance_bin(max, from_ascending(ordered)) : (origin - ordered) >> shift;
    }

    __device__ u32 bin_of(u32 token, float x) const {
        return binning == kByToken ? token >= origin : bin_of_value(ascending(x));
    }
};

struct ListMemory {
    Block block;
    Histogram bins;
    Shared<u64> list;    // keys in order
    Shared<u64> masses;  // theirs; also where a list waits to be put in order

    __device__ explicit ListMemory(Carver& carver)
        : block(carver), bins(carver), list(carver.take<u64>(kListed)), masses(carver.take<u64>(kListed)) {}

    __device__ void list_one(u64 key) const {
        __syncthreads();
        if (threadIdx.x == 0) list[0] = key;
        __syncthreads();
    }

    __device__ void weigh_list(const Pass& pass, u32 listed) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < listed; i += kThreads) masses[i] = pass.mass(logit_of(list[i]));
        __syncthreads();
    }

    // The entry of the first `count` at which the list reaches `need`; `count` if it does not.
    __device__ u32 reach(u32 count, u64 need) const {
        return block.locate(count, need - 1, [&](u32 i) { return masses[i]; }).index;
    }

    __device__ u64 list_total(u32 count) const {
        u64 own = 0;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += kThreads) own += masses[i];
        return block.sum(own);
    }

    // Takes the mass of tokens that have less than `need`.
    __device__ void cut_list(u32 count, u64 need) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += kThreads) {
            if (masses[i] < need) masses[i] = 0;
        }
        __syncthreads();
    }

    // The one token whose mass spans the point, counting the masses of tokens with smaller ids before it.
    __device__ u32 draw_from_list(u32 count, u64 point) const {
        if (threadIdx.x == 0) block.place[0] = Place{~0u, 0};
        __syncthreads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += kThreads) {
            u32 token = token_of(list[i]);
            u64 own = masses[i], before = 0;
            if (own == 0) continue;
#pragma unroll 1
            for (u32 j = 0; j < count; ++j) {
                if (token_of(list[j]) < token) before += masses[j];
            }
            if (before <= point && point < before + own) block.place[0] = Place{token, before};
        }
        __syncthreads();
        Place found = block.place[0];
        __syncthreads();
        return found.index;
    }

    // The key at which the list reaches a weight.
    __device__ u64 key_reaching(const Pass& pass, u32 listed, u64 need) const {
        auto weight = [&](u32 i) { return pass.weight(token_of(list[i]), logit_of(list[i])); };
        Place place = block.locate(listed, need - 1, weight);
        return place.index < listed ? list[place.index] : kLastKey;
    }

    __device__ u32 place_in_list(u32 listed, u64 key) const {
        u64 before = 0;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < listed; i += kThreads) before += list[i] < key;
        return (u32)block.sum(before);
    }

    __device__ u32 left_in_list(const Pass& left, u32 listed) const {
        u64 own = 0;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < listed; i += kThreads) own += left.keeps(token_of(list[i]), logit_of(list[i]));
        return (u32)block.sum(own);
    }

    // Writes the first `most` tokens of the list that are left, in order, and gives their number.
    __device__ u32 write_top(const Pass& left, u32 listed, u32 most, ReportedToken* to) const {
        u32 share = (listed + kThreads - 1) / kThreads;
        u32 from = threadIdx.x * share < listed ? threadIdx.x * share : listed;
        u32 end = from + share < listed ? from + share : listed;
        u64 own = 0, total;
#pragma unroll 1
        for (u32 i = from; i < end; ++i) own += left.keeps(token_of(list[i]), logit_of(list[i]));
        u64 place = block.sum_before(own, total);
#pragma unroll 1
        for (u32 i = from; to != nullptr && i < end && place < most; ++i) {
            u64 key = list[i];
            if (left.keeps(token_of(key), logit_of(key))) to[place++] = ReportedToken{token_of(key), logit_of(key)};
        }
        return total < most ? (u32)total : most;
    }
};
