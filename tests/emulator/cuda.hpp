// CUDA's keywords and functions in C++, for kernels compiled to run on a CPU. Included before the kernels (g++ -include); tests
// only.
#pragma once
#define CROUPIER_EMULATOR 1
#include <cmath>

#include "shared.hpp"

#define __device__
#define __global__
#define __forceinline__
#define __launch_bounds__(...)

struct uint4 {
    unsigned x, y, z, w;
};

#define threadIdx (emulator::Machine::self().current->index)
#define blockIdx (emulator::Machine::self().current->block->index)
#define gridDim (emulator::Machine::self().grid)

namespace emulator {

inline void Machine::set_up(unsigned y, unsigned blocks_of_team, unsigned threads_of_block, size_t shared_bytes) {
    size_t total = size_t(blocks_of_team) * threads_of_block;
    while (threads.size() < total) threads.push_back(std::make_unique<Thread>());
    blocks.clear();
    for (unsigned x = 0; x < blocks_of_team; ++x) {
        auto block = std::make_unique<Block>();
        block->index = Index{x, y, 0};
        block->barrier.expected = threads_of_block;
        block->warps.resize(threads_of_block / kLanes);
        for (Meeting& warp : block->warps) warp.expected = kLanes;
        block->shared = std::make_shared<SharedMemory>();
        block->shared->bytes = shared_bytes;
        blocks.push_back(std::move(block));
    }
    for (size_t i = 0; i < total; ++i) {
        Thread& thread = *threads[i];
        thread.block = blocks[i / threads_of_block].get();
        thread.index = Index{unsigned(i % threads_of_block), 0, 0};
        thread.waits_for = nullptr;
        thread.ended = false;
        thread.fiber.prepare(&Machine::begin);
    }
    team_meeting = Meeting{};
    team_meeting.expected = unsigned(total);
}

inline void Machine::launch(Index blocks_of_grid, unsigned threads_of_block, size_t shared_bytes, uint64_t seed,
                            const std::function<void()>& kernel) {
    grid = blocks_of_grid;
    random = seed | 1;
    body = &kernel;
    for (unsigned y = 0; y < grid.y; ++y) {
        set_up(y, grid.x, threads_of_block, shared_bytes);
        run_team();
    }
    body = nullptr;
}

inline Meeting& my_warp() {
    Thread& thread = *Machine::self().current;
    return thread.block->warps[thread.index.x / kLanes];
}

// Brings a value to the warp's meeting (machine.hpp) and returns that of lane `from`.
template <class T>
T exchange(T value, unsigned from, Site site) {
    static_assert(sizeof(T) <= 8, "two words at most");
    Meeting& warp = my_warp();
    unsigned lane = threadIdx.x % kLanes, turn = warp.times % 2;
    memcpy(&warp.brought[turn][lane], &value, sizeof value);
    Machine::self().meet(warp, site);
    T other;
    memcpy(&other, &warp.brought[turn][from], sizeof other);
    return other;
}

inline void need_all_lanes(unsigned mask, Site site) {
    if (mask != ~0u) fault("a warp operation without all lanes at %s:%d", site.file, site.line);
}

template <class T>
T shuffle_up(unsigned mask, T value, unsigned by, Site site) {
    need_all_lanes(mask, site);
    unsigned lane = threadIdx.x % kLanes;
    return exchange(value, lane >= by ? lane - by : lane, site);
}

template <class T>
T shuffle_down(unsigned mask, T value, unsigned by, Site site) {
    need_all_lanes(mask, site);
    unsigned lane = threadIdx.x % kLanes;
    return exchange(value, lane + by < kLanes ? lane + by : lane, site);
}

// The value of any lane.
template <class T>
T shuffle(unsigned mask, T value, unsigned from, Site site) {
    need_all_lanes(mask, site);
    return exchange(value, from % kLanes, site);
}

template <class T>
T shuffle_xor(unsigned mask, T value, unsigned bits, Site site) {
    need_all_lanes(mask, site);
    return exchange(value, (threadIdx.x % kLanes) ^ bits, site);
}

// Combines the values of all lanes.
template <class F>
unsigned reduce(unsigned mask, unsigned value, F both, Site site) {
    need_all_lanes(mask, site);
    Meeting& warp = my_warp();
    unsigned turn = warp.times % 2, result = 0;
    exchange(value, 0, site);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        unsigned other;
        memcpy(&other, &warp.brought[turn][lane], sizeof other);
        result = lane == 0 ? other : both(result, other);
    }
    return result;
}

inline unsigned ballot(unsigned mask, bool value, Site site) {
    unsigned own = value ? 1u << threadIdx.x % kLanes : 0;
    return reduce(mask, own, [](unsigned a, unsigned b) { return a | b; }, site);
}

inline bool any(unsigned mask, bool value, Site site) {
    need_all_lanes(mask, site);
    Meeting& warp = my_warp();
    unsigned turn = warp.times % 2;
    exchange(int(value), 0, site);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
        int other;
        memcpy(&other, &warp.brought[turn][lane], sizeof other);
        if (other != 0) return true;
    }
    return false;
}

}  // namespace emulator

// What is prefetched must exist.
inline void fetch_ahead(const void* from, unsigned bytes) {
    volatile unsigned char seen = 0;
    for (unsigned i = 0; i < bytes; i += 16) seen = static_cast<const unsigned char*>(from)[i];
    if (bytes > 0) seen = static_cast<const unsigned char*>(from)[bytes - 1];
    (void)seen;
    if (bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) emulator::fault("what is fetched ahead is not aligned");
    // kFetchEnd of kernels/block.cuh.
    if (bytes >> 20 != 0) emulator::fault("%u bytes are fetched ahead at once, which the hardware cannot count", bytes);
}

#define EMULATOR_SITE (emulator::Site{__FILE__, __LINE__})
#define __syncthreads() ((void)emulator::Machine::self().meet(emulator::Machine::self().current->block->barrier, EMULATOR_SITE))
// A cluster's barrier is also a barrier of each of its blocks, since all threads are at one place. It counts as both.
#define cluster_barrier() (__syncthreads(), (void)emulator::Machine::self().meet(emulator::Machine::self().team(), EMULATOR_SITE))
#define cluster_leave() cluster_barrier()
#define __shfl_up_sync(mask, value, by) emulator::shuffle_up(mask, value, by, EMULATOR_SITE)
#define __shfl_down_sync(mask, value, by) emulator::shuffle_down(mask, value, by, EMULATOR_SITE)
#define __shfl_sync(mask, value, from) emulator::shuffle(mask, value, from, EMULATOR_SITE)
#define __shfl_xor_sync(mask, value, bits) emulator::shuffle_xor(mask, value, bits, EMULATOR_SITE)
#define __ballot_sync(mask, value) emulator::ballot(mask, value, EMULATOR_SITE)
#define __reduce_add_sync(mask, value) \
    emulator::reduce(mask, value, [](unsigned a, unsigned b) { return a + b; }, EMULATOR_SITE)
#define __reduce_max_sync(mask, value) \
    emulator::reduce(mask, value, [](unsigned a, unsigned b) { return a > b ? a : b; }, EMULATOR_SITE)
#define __reduce_or_sync(mask, value) \
    emulator::reduce(mask, value, [](unsigned a, unsigned b) { return a | b; }, EMULATOR_SITE)
#define __any_sync(mask, value) emulator::any(mask, value, EMULATOR_SITE)
#define __nanosleep(time) emulator::Machine::self().pause()
#define __threadfence() ((void)0)

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline long long __double_as_longlong(double value) {
    long long bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline double __hiloint2double(int high, int low) {
    unsigned long long bits = static_cast<unsigned long long>(unsigned(high)) << 32 | unsigned(low);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __ffs(unsigned value) { return __builtin_ffs(int(value)); }
inline int __clz(unsigned value) { return value == 0 ? 32 : __builtin_clz(value); }

// The larger of the two; NaN if either is.
inline float max_or_nan(float a, float b) { return a != a || b != b ? std::nanf("") : fmaxf(a, b); }

// A shift by 64 or more gives 0.
inline unsigned long long shift_down(unsigned long long value, unsigned by) { return by < 64 ? value >> by : 0; }

// One thread runs at a time, so these are atomic as they are.
template <class T>
T atomicAdd(T* at, T value) {
    T old = *at;
    *at = old + value;
    return old;
}
template <class T>
T atomicMax(T* at, T value) {
    T old = *at;
    *at = old < value ? value : old;
    return old;
}
template <class T>
T atomicOr(T* at, T value) {
    T old = *at;
    *at = old | value;
    return old;
}
