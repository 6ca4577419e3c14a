// What a pass looks for, and what is done with a list of tokens in shared memory. All threads of a block call the list's
// functions and get the same result.
#pragma once
#include "numbers.cuh"
#include "team.cuh"

// Sums by chunk, or where only their sum is asked for in one of them; both are sums of the same boxes.
enum Sink { kToBins, kToChunks, kToTotal, kToList };
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

    // Every token that has a chance weighs its mass.
    __device__ bool weighs_all() const { return !counts && first_key == 0 && last_key == kLastKey && need == 0; }
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
        return binning == kByDistance ? distance_bin(max, from_ascending(ordered)) : (origin - ordered) >> shift;
    }

    __device__ u32 bin_of(u32 token, float x) const {
        return binning == kByToken ? token >= origin : bin_of_value(ascending(x));
    }
};

struct ListMemory {
    Block block;
    Boxes boxes;
    Shared<u64> list;    // keys in order
    Shared<u64> masses;  // theirs; also where a list waits to be put in order

    __device__ explicit ListMemory(Carver& carver)
        : block(carver), boxes(carver), list(carver.take<u64>(kListed)), masses(carver.take<u64>(kListed)) {}

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
        __syncthreads();
        if (threadIdx.x == 0) block.place[0] = Place{~0u, 0, 0};
        __syncthreads();
        each_in_groups(count, [&](u32 i, u32 first, u32 step) {
            u32 token = i < count ? token_of(list[i]) : 0;
            u64 before = 0;
#pragma unroll 4
            for (u32 j = first; j < count; j += step) before += token_of(list[j]) < token ? (u64)masses[j] : 0;
            before = sum_of_group(before, step);
            if (first > 0 || i >= count) return;
            u64 own = masses[i];
            if (before <= point && point < before + own) block.place[0] = Place{token, before, own};
        });
        __syncthreads();
        return static_cast<Place>(block.place[0]).index;
    }

    // Brings keys that wait among the masses into the list, in order: a key's place is the number of smaller ones.
    __device__ void put_in_order(u32 listed) const {
        __syncthreads();
        each_in_groups(listed, [&](u32 i, u32 first, u32 step) {
            u64 key = i < listed ? (u64)masses[i] : 0, place = 0;
#pragma unroll 4
            for (u32 j = first; j < listed; j += step) place += masses[j] < key;
            place = sum_of_group(place, step);
            if (first == 0 && i < listed) list[(u32)place] = key;
        });
        __syncthreads();
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

  private:
    // Calls f(i, first, step) for each of n entries, by as many neighbouring lanes for one as there are threads; each begins
    // with another `first` below `step`. Whole warps take part, for entries beyond the last one too.
    template <class F>
    __device__ static void each_in_groups(u32 n, F f) {
        u32 step = kWarp;
        while (step > 1 && n * step > kThreads) step /= 2;
#pragma unroll 1
        for (u32 base = 0; base < n; base += kThreads / step) f(base + threadIdx.x / step, threadIdx.x % step, step);
    }

    __device__ static u64 sum_of_group(u64 value, u32 lanes) {
#pragma unroll 1
        for (u32 bits = lanes / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
        return value;
    }
};
