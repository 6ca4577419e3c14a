// What the threads of one block do together. All of them must call each function. A team is the blocks that work on one row
// (team.cuh).
#pragma once
#include "params.cuh"

constexpr u32 kWarp = 32;
constexpr u32 kWarps = kThreads / kWarp;
constexpr u32 kAllLanes = 0xFFFFFFFFu;
// One prefetch must be shorter than this many bytes: the hardware counts units of 16 bytes, in 16 bits.
constexpr u32 kFetchEnd = 1 << 20;

// An array in shared memory. The emulator has its own version, which checks bounds, uninitialised reads and races.
#ifndef CROUPIER_EMULATOR
template <class T>
struct Shared {
    T* at;
    __device__ T& operator[](u32 i) const { return at[i]; }
};

__device__ inline u32 shared_add(Shared<u32> array, u32 i, u32 value) { return atomicAdd(&array.at[i], value); }
__device__ inline void shared_or(Shared<u32> array, u32 i, u32 value) { atomicOr(&array.at[i], value); }
__device__ inline void shared_max(Shared<u64> array, u32 i, u64 value) { atomicMax(&array.at[i], value); }

// Tells the compiler what it cannot see in a function that is not inlined: that an array passed to it is in shared memory.
template <class T>
__device__ inline Shared<T> in_shared(Shared<T> array) {
    __builtin_assume(__isShared(array.at));
    return array;
}

// Two neighbouring entries of an array in one read; `i` is even.
struct alignas(16) Two {
    u64 a, b;
};
__device__ inline Two two_of(Shared<u64> array, u32 i) { return *reinterpret_cast<const Two*>(array.at + i); }

// A struct that was written as words, from word `first` on.
template <class T>
__device__ inline const T& whole(Shared<u32> words, u32 first) {
    return *reinterpret_cast<const T*>(words.at + first);
}

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

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The same array in another block of the cluster, which has cut its shared memory in the same way.
template <class T>
__device__ Shared<T> of_block(Shared<T> array, u32 rank) {
    u64 there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(array.at), "r"(rank));
    return Shared<T>{reinterpret_cast<T*>(there)};
}

// Prefetches memory into the L2 cache without waiting for it. It must be 16-byte aligned, a multiple of 16 bytes, and less than
// kFetchEnd.
__device__ inline void fetch_ahead(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
}

// The barrier of a cluster. After it, the other blocks of the cluster see what the block has in shared memory. No block writes
// global memory that another block reads, so global memory is not waited for.
// The older compiler (12.2) has no fence for shared memory alone, and its release covers the whole device. Every warp would wait
// for that, so one warp does it for the whole block, after a barrier of the block.
// Reads from another block are not fenced either. Hence a rule for all barriers: a value read from another block is used before the
// next barrier, since a thread that has the value is past the read. scripts/cubin_waits.py checks this.
__device__ inline void cluster_barrier() {
    __syncthreads();
#if __CUDACC_VER_MAJOR__ >= 13
    if (threadIdx.x < kWarp) asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
#else
    if (threadIdx.x < kWarp) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    else asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The last barrier of a cluster: no block ends while others read its shared memory. It waits for no memory.
__device__ inline void cluster_leave() {
    __syncthreads();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
#endif
#endif

// A place in a sequence of weights: its weight, and the sum of the weights before it.
struct Place {
    u32 index;
    u64 before;
    u64 weight;
};

// The sum over a warp, in every lane. It is added up in parts of 27 bits, since 32 of these fit into 32 bits.
__device__ inline u64 warp_sum(u64 value) {
    constexpr u32 kBits = 27, kLow = (1u << kBits) - 1;
    u64 low = __reduce_add_sync(kAllLanes, (u32)value & kLow);
    u64 middle = __reduce_add_sync(kAllLanes, (u32)(value >> kBits) & kLow);
    u64 high = __reduce_add_sync(kAllLanes, (u32)(value >> 2 * kBits));
    return low + (middle << kBits) + (high << 2 * kBits);
}

__device__ inline u64 warp_max(u64 value) {
    u32 high = __reduce_max_sync(kAllLanes, (u32)(value >> 32));
    u32 low = __reduce_max_sync(kAllLanes, (u32)(value >> 32) == high ? (u32)value : 0);
    return (u64)high << 32 | low;
}

// The sum over the lanes up to and including this one.
__device__ inline u64 warp_scan_here(u64 value) {
    u32 lane = threadIdx.x % kWarp;
#pragma unroll
    for (u32 step = 1; step < kWarp; step *= 2) {
        u64 other = __shfl_up_sync(kAllLanes, value, step);
        if (lane >= step) value += other;
    }
    return value;
}
__device__ CROUPIER_ONCE inline u64 warp_scan(u64 value) { return warp_scan_here(value); }

// The first i below n with weight(0) + ... + weight(i) > point; n and the sum of all weights if there is none. Each warp finds it
// for itself, which is fastest for few weights.
template <class Weight>
__device__ Place warp_locate(u32 n, u64 point, Weight weight) {
    u32 lane = threadIdx.x % kWarp, share = (n + kWarp - 1) / kWarp;
    u32 i = lane * share < n ? lane * share : n;
    u32 end = i + share < n ? i + share : n;
    u64 own = 0;
#pragma unroll 1
    for (u32 at = i; at < end; ++at) own += weight(at);
    u64 sum = warp_scan(own), before = sum - own;
    bool is_here = before <= point && point < sum;
    u32 lanes = __ballot_sync(kAllLanes, is_here);
    if (lanes == 0) return Place{n, __shfl_sync(kAllLanes, sum, kWarp - 1), 0};
    if (is_here && share > 1) {
#pragma unroll 1
        while (before + (own = weight(i)) <= point) {
            before += own;
            ++i;
        }
    }
    u32 from = __ffs(lanes) - 1;
    return Place{__shfl_sync(kAllLanes, i, from), __shfl_sync(kAllLanes, before, from), __shfl_sync(kAllLanes, own, from)};
}

// The first value from `from` up to `to` for which `is_met` holds, as it must for all larger ones; `to` if it holds for none
// before. The two halves of a warp search at the same time, each with its own arguments and 16 probes in a round.
template <class Is>
__device__ u32 half_warp_first(u32 from, u32 to, Is is_met) {
    constexpr u32 kHalf = kWarp / 2;
    u32 lane = threadIdx.x % kHalf, shift = threadIdx.x % kWarp / kHalf * kHalf;
#pragma unroll 1
    while (__any_sync(kAllLanes, from < to)) {
        u32 span = to - from, step = span / kHalf + 1;
        u32 offset = lane * step < span ? lane * step : span;
        bool met = offset == span || is_met(from + offset);
        u32 lanes = __ballot_sync(kAllLanes, met) >> shift & ((1u << kHalf) - 1);
        u32 first = lanes != 0 ? __ffs(lanes) - 1 : kHalf;
        u32 above = first * step < span ? first * step : span;
        to = first < kHalf ? from + above : to;
        from = first > 0 ? from + (first - 1) * step + 1 : from;
        from = from < to ? from : to;
    }
    return to;
}

// Shared memory of the functions below.
struct Block {
    Shared<u64> partial;  // one per warp
    Shared<Place> place;  // one

    __device__ explicit Block(Carver& carver) : partial(carver.take<u64>(kWarps)), place(carver.take<Place>(1)) {}

    // The sum of the values of the threads before this one; `total` becomes that of all threads.
    __device__ u64 sum_before(u64 value, u64& total) const {
        Sums sums = sums_of(partial, value);
        total = sums.total;
        return sums.before;
    }

    struct Sums {
        u64 before, total;
    };
    __device__ CROUPIER_ONCE static Sums sums_of(Shared<u64> partial, u64 value) {
        u32 lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        u64 sum = warp_scan(value);
        __syncthreads();
        if (lane == kWarp - 1) partial[warp] = sum;
        __syncthreads();
        u64 sums = warp_scan(lane < kWarps ? (u64)partial[lane] : 0);
        u64 total = __shfl_sync(kAllLanes, sums, kWarps - 1);
        u64 before = __shfl_sync(kAllLanes, sums, warp > 0 ? warp - 1 : 0);
        return Sums{(warp > 0 ? before : 0) + sum - value, total};
    }

    // The same for two counts in the halves of a word. The caller must have passed a barrier before.
    __device__ u32 pairs_before(u32 value, u32& total) const {
        u32 lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, sum = value;
#pragma unroll
        for (u32 step = 1; step < kWarp; step *= 2) {
            u32 other = __shfl_up_sync(kAllLanes, sum, step);
            if (lane >= step) sum += other;
        }
        if (lane == kWarp - 1) partial[warp] = sum;
        __syncthreads();
        u32 of_warp = lane < kWarps ? (u32)(u64)partial[lane] : 0;
        total = __reduce_add_sync(kAllLanes, of_warp);
        return __reduce_add_sync(kAllLanes, lane < warp ? of_warp : 0) + sum - value;
    }

    __device__ u64 sum(u64 value) const { return sum_of(partial, value); }
    __device__ CROUPIER_ONCE static u64 sum_of(Shared<u64> partial, u64 value) {
        u32 lane = threadIdx.x % kWarp;
        u64 of_warp = warp_sum(value);
        __syncthreads();
        if (lane == 0) partial[threadIdx.x / kWarp] = of_warp;
        __syncthreads();
        return warp_sum(lane < kWarps ? (u64)partial[lane] : 0);
    }

    // Both become the maximum over all threads.
    __device__ void max_of_two(u32& first, u32& second) const {
        u32 lane = threadIdx.x % kWarp;
        u64 of_warp = (u64)__reduce_max_sync(kAllLanes, first) << 32 | __reduce_max_sync(kAllLanes, second);
        __syncthreads();
        if (lane == 0) partial[threadIdx.x / kWarp] = of_warp;
        __syncthreads();
        u64 mine = lane < kWarps ? (u64)partial[lane] : 0;
        first = __reduce_max_sync(kAllLanes, (u32)(mine >> 32));
        second = __reduce_max_sync(kAllLanes, (u32)mine);
    }

    // Like `warp_locate`, by the whole block.
    template <class Weight>
    __device__ Place locate(u32 n, u64 point, Weight weight) const {
        return locate_by(n, [&](u64) { return point; }, weight);
    }

    // The same with a point that depends on the sum of all weights.
    template <class Point, class Weight>
    __device__ Place locate_by(u32 n, Point point_of, Weight weight) const {
        u32 share = (n + kThreads - 1) / kThreads;
        u32 i = threadIdx.x * share < n ? threadIdx.x * share : n;
        u32 to = i + share < n ? i + share : n;
        u64 own = 0, total;
#pragma unroll 1
        for (u32 at = i; at < to; ++at) own += weight(at);
        u64 before = sum_before(own, total), point = point_of(total);
        if (threadIdx.x == 0 && point >= total) place[0] = Place{n, total, 0};
        if (before <= point && point < before + own) {
#pragma unroll 1
            while (share > 1 && before + (own = weight(i)) <= point) {
                before += own;
                ++i;
            }
            place[0] = Place{i, before, own};
        }
        __syncthreads();
        // It is written again only after the barriers of the next sum.
        return place[0];
    }
};

// Sums of 64 bits by bin, from 32-bit atomics, which shared memory has in hardware: the thread that makes the low half wrap adds
// the carry. The halves are adjacent, low first, so that they are read as one.
struct Histogram {
    Shared<u32> halves;
    u32 first;  // the place of its first bin in the array

    // All threads that filled or read these sums before must be past a barrier: the team's, which ends a phase, or the last one in
    // `locate`.
    __device__ void clear(u32 bins) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < 2 * bins; i += kThreads) halves[2 * first + i] = 0;
        __syncthreads();
    }

    __device__ void add(u32 bin, u64 weight) const {
        u32 value = (u32)weight, at = 2 * (first + bin);
        u32 old = shared_add(halves, at, value);
        u32 carried = (u32)(weight >> 32) + (old + value < old);
        if (carried > 0) shared_add(halves, at + 1, carried);
    }

    // Counts in 32 bits, which take half the room. The previous count is not asked for, so the hardware adds up the lanes of a warp
    // that count in the same bin.
    __device__ void add_one(u32 bin) const { (void)shared_add(halves, 2 * first + bin, 1); }

    // Two counts in the halves of a word, which take half the room.
    __device__ void clear_pairs(u32 bins) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < bins; i += kThreads) halves[2 * first + i] = 0;
        __syncthreads();
    }
    __device__ void add_pair(u32 bin, u32 counts) const { (void)shared_add(halves, 2 * first + bin, counts); }
    __device__ u32 pair(u32 bin) const { return halves[2 * first + bin]; }

    // For the only thread that writes this sum before the next barrier. The sum need not have been cleared.
    __device__ void set(u32 bin, u64 weight) const {
        halves[2 * (first + bin)] = (u32)weight;
        halves[2 * (first + bin) + 1] = (u32)(weight >> 32);
    }

    __device__ u64 get(u32 bin) const { return whole<u64>(halves, 2 * (first + bin)); }
};
