// What the threads of one block do together. All of them must call each function.
#pragma once
#include "params.cuh"

constexpr u32 kWarp = 32;
constexpr u32 kWarps = kThreads / kWarp;
constexpr u32 kAllLanes = 0xFFFFFFFFu;

// An array in shared memory. The emulator has its own, which checks bounds, first writes and races.
#ifndef CROUPIER_EMULATOR
template <class T>
struct Shared {
    T* at;
    __device__ T& operator[](u32 i) const { return at[i]; }
};

__device__ inline u32 shared_add(Shared<u32> array, u32 i, u32 value) { return atomicAdd(&array.at[i], value); }
__device__ inline void shared_or(Shared<u32> array, u32 i, u32 value) { atomicOr(&array.at[i], value); }

extern __shared__ uint4 shared_memory[];

// Cuts shared memory into arrays, in the order of the calls.
struct Carver {
    u8* next;
    template <class T>
    __device__ Shared<T> take(u32 count) {
        Shared<T> array{reinterpret_cast<T*>(next)};
        next += (count * sizeof(T) + 15) / 16 * 16;
        return array;
    }
};

__device__ inline Carver carver() { return Carver{reinterpret_cast<u8*>(shared_memory)}; }
#endif

struct Place {
    u32 index;
    u64 before;
};

// Shared memory of the functions below.
struct Block {
    Shared<u64> partial;  // one per warp
    Shared<Place> place;  // one

    __device__ explicit Block(Carver& carver) : partial(carver.take<u64>(kWarps)), place(carver.take<Place>(1)) {}

    // The sum of the values of the threads before this one; `total` of all.
    __device__ u64 sum_before(u64 value, u64& total) const {
        u32 lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        u64 sum = value;
#pragma unroll 1
        for (u32 step = 1; step < kWarp; step *= 2) {
            u64 other = __shfl_up_sync(kAllLanes, sum, step);
            if (lane >= step) sum += other;
        }
        __syncthreads();
        if (lane == kWarp - 1) partial[warp] = sum;
        __syncthreads();
        u64 before = 0;
        total = 0;
#pragma unroll 1
        for (u32 w = 0; w < kWarps; ++w) {
            u64 of_warp = partial[w];
            if (w < warp) before += of_warp;
            total += of_warp;
        }
        return before + sum - value;
    }

    __device__ u64 sum(u64 value) const {
        u64 total;
        sum_before(value, total);
        return total;
    }

    // The first i below n with weight(0) + ... + weight(i) > point, and the weight before it; n and the whole weight if
    // there is none.
    template <class Weight>
    __device__ Place locate(u32 n, u64 point, Weight weight) const {
        u32 share = (n + kThreads - 1) / kThreads;
        u32 from = threadIdx.x * share < n ? threadIdx.x * share : n;
        u32 to = from + share < n ? from + share : n;
        u64 own = 0, total;
#pragma unroll 1
        for (u32 i = from; i < to; ++i) own += weight(i);
        u64 before = sum_before(own, total);
        if (threadIdx.x == 0 && point >= total) place[0] = Place{n, total};
        if (before <= point && point < before + own) {
            u32 i = from;
#pragma unroll 1
            for (u64 next = before; (next += weight(i)) <= point; ++i) before = next;
            place[0] = Place{i, before};
        }
        __syncthreads();
        Place found = place[0];
        __syncthreads();
        return found;
    }
};

__device__ inline u64 warp_sum(u64 value) {
    for (u32 step = kWarp / 2; step > 0; step /= 2) value += __shfl_down_sync(kAllLanes, value, step);
    return value;
}

__device__ inline u64 warp_max(u64 value) {
    for (u32 step = kWarp / 2; step > 0; step /= 2) {
        u64 other = __shfl_down_sync(kAllLanes, value, step);
        value = other > value ? other : value;
    }
    return value;
}

// Sums of 64 bits by bin, from 32-bit atomics, which shared memory has in hardware: whoever makes the low half wrap
// carries.
struct Histogram {
    Shared<u32> low;
    Shared<u32> high;

    __device__ explicit Histogram(Carver& carver) : low(carver.take<u32>(kBins)), high(carver.take<u32>(kBins)) {}

    __device__ void clear() const {
        __syncthreads();
        for (u32 bin = threadIdx.x; bin < kBins; bin += kThreads) {
            low[bin] = 0;
            high[bin] = 0;
        }
        __syncthreads();
    }

    __device__ void add(u32 bin, u64 weight) const {
        u32 value = (u32)weight;
        u32 old = shared_add(low, bin, value);
        u32 carried = (u32)(weight >> 32) + (old + value < old);
        if (carried > 0) shared_add(high, bin, carried);
    }

    __device__ u64 get(u32 bin) const { return (u64)high[bin] << 32 | low[bin]; }
};
