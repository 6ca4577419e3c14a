// A team is the blocks that work on one row. This file has its barrier, and how the blocks combine their results.
//
// A team works in phases. In each phase, every block fills a box of its own: sums, lists and a few numbers. `sync` ends the phase.
// Then each block reads the boxes of all blocks and reaches the same decision. Only integers are added, so the order of the blocks
// does not matter. A block has two boxes, which it uses in turn: when it fills one again, it is past a barrier after which no block
// reads that box any more.
#pragma once
#include "block.cuh"

// The switch for what only Hopper and later GPUs have: there the blocks of a team are a cluster and read each other's shared
// memory. Without clusters, boxes are copied to global memory and the barrier is there, for which the host has to launch all blocks
// at once (a cooperative launch). A team of one block needs neither.
#ifndef CROUPIER_CLUSTER
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CROUPIER_CLUSTER 1
#else
#define CROUPIER_CLUSTER 0
#endif
#endif

// What a box holds besides sums and lists: one number each, zero when a phase begins. In a phase with two lists, the length of the
// second takes the place of the token that was found.
enum Few : u32 { kRawMax, kFound, kCount, kNoted, kFew, kSecondCount = kFound };

// The lists of a box: one list, or two, each with half of the room.
enum Part : u32 { kWhole, kFirst, kSecond };
constexpr u32 kHalf = kListed / 2;

// A box in global memory.
struct Carried {
    u64 best;
    u32 few[4];
    u64 sums[kBins];
    u64 list[kListed];
};

// The global memory of a block. A team uses the counters of its first block. They are zero before and after each launch.
struct Scratch {
    u32 arrived;
    u32 left;
    u64 unused;
    Carried carried[2];
};
static_assert(sizeof(Carried) == 12312, "shared with the host");
static_assert(kFew <= 4, "each has its place there");
static_assert(sizeof(Scratch) == 16 + 2 * sizeof(Carried), "shared with the host");

// The two boxes of a block.
struct Boxes {
    Shared<u64> best;  // the largest inverted key
    Shared<u32> few;
    Shared<u32> sums;  // halves of sums by bin or by chunk
    Shared<u64> list;  // keys

    __device__ explicit Boxes(Carver& carver)
        : best(carver.take<u64>(2)),
          few(carver.take<u32>(2 * kFew)),
          sums(carver.take<u32>(4 * kBins)),
          list(carver.take<u64>(2 * kListed)) {}
};

// ceil(n / size) for the chunks of a row and the size of a team. It multiplies by one of eight stored reciprocals, because a
// division by a number that the compiler does not know takes 20 instructions.
__device__ constexpr u32 share_of(u32 n, u32 size) {
    // ceil(2^15 / size)
    constexpr u64 first = 0x20002AAB40008000ull, second = 0x1000124A1556199Aull;
    u32 reciprocal = (u32)((size <= 4 ? first : second) >> ((size - 1) % 4 * 16)) & 0xFFFF;
    return (n + size - 1) * reciprocal >> 15;
}
__device__ constexpr bool shares_are_exact() {
    for (u32 size = 1; size <= kMaxTeam; ++size) {
        for (u32 n = 0; n <= kMaxTeam * kSliceChunks; ++n) {
            if (share_of(n, size) != (n + size - 1) / size) return false;
        }
    }
    return true;
}
static_assert(shares_are_exact(), "rounding up loses nothing");

struct Team {
    const Boxes& boxes;
    Scratch* scratch;  // of the first block
    u32 rank;
    u32 size;
    u32 phase;

    __device__ Team(const Boxes& boxes, Scratch* all)
        : boxes(boxes), scratch(all + blockIdx.y * gridDim.x), rank(blockIdx.x), size(gridDim.x), phase(0) {
        empty(0);
    }

    __device__ bool leads() const { return rank == 0; }

    // ---- the box that is filled ----

    __device__ Histogram sums() const { return Histogram{boxes.sums, box() * kBins}; }

    // Keeps the largest value.
    __device__ void bring_best(u64 best) const { shared_max(boxes.best, box(), best); }
    // For one thread of the block.
    __device__ void bring_raw_max(u32 raw_max) const { boxes.few[box() * kFew + kRawMax] = raw_max; }
    __device__ void bring_found(u32 token) const { boxes.few[box() * kFew + kFound] = token + 1; }

    __device__ void append(u64 key, Part part) const {
        u32 at = shared_add(boxes.few, box() * kFew + count_in(part), 1);
        if (at < room_of(part)) boxes.list[box() * kListed + start_of(part) + at] = key;
    }

    // Counts what the block notes for itself, and returns the count before.
    __device__ u32 note() const { return shared_add(boxes.few, box() * kFew + kNoted, 1); }
    __device__ u32 noted() const { return boxes.few[box() * kFew + kNoted]; }
    // Says that more is to be listed than fits, with `of_two` in both lists. For one thread of the block.
    __device__ void overflow(bool of_two) const {
        (void)shared_add(boxes.few, box() * kFew + kCount, kListed + 1);
        if (of_two) (void)shared_add(boxes.few, box() * kFew + kSecondCount, kListed + 1);
    }

    // Threads form groups, and each group reports its largest logits. A block has a power of two of groups, and the team at most as
    // many as a block has threads, so that each thread reads one. A group is stored in place of a sum: the adjusted logit in the
    // low half, the one as sent in the high half.
    __device__ u32 group_bits() const { return __clz(size - 1) - __clz(kThreads) - 1; }
    __device__ u32 block_groups() const { return 1u << group_bits(); }
    __device__ u32 groups() const { return size << group_bits(); }
    __device__ void bring_group(u32 i, u32 adjusted, u32 raw) const { sums().set(i, (u64)raw << 32 | adjusted); }

    // Whether the value that `count` groups reach is a good bound for the first `count` tokens, because few of these share a group.
    __device__ bool groups_tell(u32 count) const { return count > 0 && count <= groups() / 4; }

    // Ends the phase. `sums_used` is the number of sums that were filled, or more; `has_two` says whether two lists were.
    __device__ void sync(u32 sums_used, bool has_two = false) {
        barrier(sums_used, has_two);
        ++phase;
        empty(box());
    }

    // Ends the last phase: no block ends while others read its box, and the counters are zero for the next launch.
    __device__ void end() {
        if (size == 1) return;
#if CROUPIER_CLUSTER
        cluster_leave();
#else
        barrier(0, false);
        if (threadIdx.x == 0 && atomicAdd(&scratch->left, 1u) == size - 1) {
            // Every block is past its last barrier.
            scratch->arrived = 0;
            scratch->left = 0;
        }
#endif
    }

    // ---- the boxes of the phase that was ended ----

    __device__ u64 sum_of(u32 of, u32 i) const {
        u32 at = 2 * (full() * kBins + i);
#if CROUPIER_CLUSTER
        return whole<u64>(of_block(boxes.sums, of), at);
#else
        return size == 1 ? whole<u64>(boxes.sums, at) : carried(of).sums[i];
#endif
    }

    // One of the block's own sums.
    __device__ u64 own_sum(u32 i) const { return whole<u64>(boxes.sums, 2 * (full() * kBins + i)); }

    // The count in one bin, over all blocks.
    __device__ u32 count(u32 i) const {
        u32 counts[kMaxTeam], sum = 0;
#pragma unroll
        for (u32 of = 0; of < kMaxTeam; ++of) {
            counts[of] = 0;
            if (of < size) counts[of] = count_of(of, i);
        }
        all_read(counts);
#pragma unroll
        for (u32 of = 0; of < kMaxTeam; ++of) sum += counts[of];
        return sum;
    }

    // The sum in one bin, over all blocks.
    __device__ u64 bin(u32 i) const {
        u64 sums[kMaxTeam], sum = 0;
#pragma unroll
        for (u32 of = 0; of < kMaxTeam; ++of) {
            sums[of] = 0;
            if (of < size) sums[of] = sum_of(of, i);
        }
        all_read(sums);
#pragma unroll
        for (u32 of = 0; of < kMaxTeam; ++of) sum += sums[of];
        return sum;
    }

    // What the first look at a row has found: the largest value that `bring_best` brought, the largest logit as sent, and the
    // thread's group if groups are asked for, else 0. All reads are issued before any value is used.
    struct Told {
        u64 best;
        u64 group;
        u32 raw_max;
    };
    __device__ Told told(bool asks_groups) const {
        u32 of = threadIdx.x % kWarp;
        Told told{0, 0, 0};
        if (asks_groups && threadIdx.x < groups()) told.group = group(threadIdx.x);
        if (of < size) {
            told.best = best_of(of);
            told.raw_max = few_of(of, kRawMax);
        }
        is_read(told);
        told.best = warp_max(told.best);
        told.raw_max = __reduce_max_sync(kAllLanes, told.raw_max);
        return told;
    }
    // The token that was found; ~0, which is no token, if there was none.
    __device__ u32 found() const {
        u32 of = threadIdx.x % kWarp;
        return __reduce_max_sync(kAllLanes, of < size ? few_of(of, kFound) : 0) - 1;
    }

    // Copies the lists of all blocks into one array and returns their total length; more than kListed if they do not fit, or if one
    // block's list did not.
    __device__ u32 gather(Shared<u64> to, Part part) const {
        u32 lane = threadIdx.x % kWarp;
        u32 count = lane < size ? few_of(lane, count_in(part)) : 0;
        count = count > room_of(part) ? kListed + 1 : count;
        u32 before = (u32)warp_scan(count) - count, total = __reduce_add_sync(kAllLanes, count);
        if (total > kListed) return total;
        __syncthreads();
#pragma unroll 1
        for (u32 base = 0; base < total; base += kThreads) {
            u32 i = base + threadIdx.x, of = 0;
#pragma unroll
            for (u32 other = 1; other < kMaxTeam; ++other) of += __shfl_sync(kAllLanes, before, other) <= i;
            u32 first = __shfl_sync(kAllLanes, before, of);
            if (i < total) to[i] = listed_of(of, start_of(part) + i - first);
        }
        return total;
    }

    struct Lengths {
        u32 first, second;
    };
    // For each lane the lengths of one block's lists. They are to be used after `is_read`.
    __device__ Lengths lengths() const {
        u32 of = threadIdx.x % kWarp;
        return of < size ? Lengths{few_of(of, kCount), few_of(of, kSecondCount)} : Lengths{0, 0};
    }
    static __device__ void is_read([[maybe_unused]] Lengths& lengths, [[maybe_unused]] u64& sum) {
#ifndef CROUPIER_EMULATOR
        asm volatile("" : "+r"(lengths.first), "+r"(lengths.second), "+l"(sum));
#endif
    }
    // Copies both lists of all blocks to `to`, the second to its upper half, unless one has more than `most` tokens. Returns their
    // total lengths. Each lane has the lengths of one block's lists, and each token has a thread. No thread may still be reading
    // `to`.
    __device__ Lengths gather_both(Lengths of_lane, Shared<u64> to, u32 most) const {
        Lengths all{__reduce_add_sync(kAllLanes, of_lane.first), __reduce_add_sync(kAllLanes, of_lane.second)};
        if (all.first > most || all.second > most) return all;
        // The other threads in each half of the block, which are whole warps, have nothing to copy.
        if (threadIdx.x % (kThreads / 2) >= most) return all;
        // The lengths of both lists, in the halves of a word, summed over the blocks before the lane's.
        u32 lane = threadIdx.x % kWarp, before = 0, own = of_lane.second << 16 | of_lane.first;
#pragma unroll
        for (u32 other = 0; other < kMaxTeam; ++other) {
            u32 lengths = __shfl_sync(kAllLanes, own, other);
            before += other < lane ? lengths : 0;
        }
        Part part = threadIdx.x < kThreads / 2 ? kFirst : kSecond;
        u32 i = threadIdx.x % (kThreads / 2), shift = part == kFirst ? 0 : 16, of = 0;
#pragma unroll
        for (u32 other = 1; other < kMaxTeam; ++other) of += (__shfl_sync(kAllLanes, before, other) >> shift & 0xFFFF) <= i;
        u32 begin = __shfl_sync(kAllLanes, before, of) >> shift & 0xFFFF;
        if (i < (part == kFirst ? all.first : all.second)) to[start_of(part) + i] = listed_of(of, start_of(part) + i - begin);
        return all;
    }

  private:
    // One of the team's groups: its adjusted logit, and in the high half its logit as sent.
    __device__ u64 group(u32 i) const { return sum_of(i >> group_bits(), i % block_groups()); }

    __device__ u32 box() const { return phase % 2; }
    __device__ u32 full() const { return (phase + 1) % 2; }
    __device__ static u32 count_in(Part part) { return part == kSecond ? kSecondCount : kCount; }
    __device__ static u32 start_of(Part part) { return part == kSecond ? kHalf : 0; }
    __device__ static u32 room_of(Part part) { return part == kWhole ? kListed : kHalf; }

    __device__ void empty(u32 box) const {
        if (threadIdx.x < kFew) boxes.few[box * kFew + threadIdx.x] = 0;
        if (threadIdx.x == 0) boxes.best[box] = 0;
    }

    // The compiler may use the values only after this, so that it puts no read into a branch together with its use. The assembler
    // still adds up between groups of two or three reads, to save registers.
    __device__ static void is_read([[maybe_unused]] Told& told) {
#ifndef CROUPIER_EMULATOR
        asm volatile("" : "+l"(told.best), "+l"(told.group), "+r"(told.raw_max));
#endif
    }
    __device__ static void all_read([[maybe_unused]] u32 (&counts)[kMaxTeam]) {
#ifndef CROUPIER_EMULATOR
        asm volatile("" : "+r"(counts[0]), "+r"(counts[1]), "+r"(counts[2]), "+r"(counts[3]), "+r"(counts[4]), "+r"(counts[5]),
                     "+r"(counts[6]), "+r"(counts[7]));
#endif
    }
    __device__ static void all_read([[maybe_unused]] u64 (&sums)[kMaxTeam]) {
#ifndef CROUPIER_EMULATOR
        asm volatile("" : "+l"(sums[0]), "+l"(sums[1]), "+l"(sums[2]), "+l"(sums[3]), "+l"(sums[4]), "+l"(sums[5]), "+l"(sums[6]),
                     "+l"(sums[7]));
        static_assert(kMaxTeam == 8, "each of them is named");
#endif
    }

#if CROUPIER_CLUSTER
    __device__ u32 count_of(u32 of, u32 i) const { return of_block(boxes.sums, of)[2 * full() * kBins + i]; }
    __device__ u64 best_of(u32 of) const { return of_block(boxes.best, of)[full()]; }
    __device__ u32 few_of(u32 of, u32 which) const { return of_block(boxes.few, of)[full() * kFew + which]; }
    __device__ u64 listed_of(u32 of, u32 i) const { return of_block(boxes.list, of)[full() * kListed + i]; }

    // After it, the blocks of the cluster see what the others have in shared memory.
    __device__ void barrier(u32, bool) const {
        if (size == 1) __syncthreads();
        else cluster_barrier();
    }
#else
    __device__ Carried& carried(u32 of) const { return scratch[of].carried[full()]; }
    __device__ u32 count_of(u32 of, u32 i) const {
        return size == 1 ? (u32)boxes.sums[2 * full() * kBins + i] : (u32)(carried(of).sums[i / 2] >> (i % 2 * 32));
    }
    __device__ u64 best_of(u32 of) const { return size == 1 ? (u64)boxes.best[full()] : carried(of).best; }
    __device__ u32 few_of(u32 of, u32 which) const {
        return size == 1 ? (u32)boxes.few[full() * kFew + which] : carried(of).few[which];
    }
    __device__ u64 listed_of(u32 of, u32 i) const {
        return size == 1 ? (u64)boxes.list[full() * kListed + i] : carried(of).list[i];
    }

    __device__ void barrier(u32 sums_used, bool has_two) const {
        __syncthreads();
        if (size == 1) return;
        carry(scratch[rank].carried[box()], sums_used, has_two);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(&scratch->arrived, 1u);
            while (*(volatile u32*)&scratch->arrived < size * (phase + 1)) __nanosleep(20);
            __threadfence();
        }
        __syncthreads();
    }

    // Copies the box that was filled to global memory.
    __device__ void carry(Carried& to, u32 sums_used, bool has_two) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < sums_used; i += kThreads) to.sums[i] = sums().get(i);
        carry_list(to, has_two ? kFirst : kWhole);
        if (has_two) carry_list(to, kSecond);
        if (threadIdx.x < kFew) to.few[threadIdx.x] = boxes.few[box() * kFew + threadIdx.x];
        if (threadIdx.x == 0) to.best = boxes.best[box()];
    }

    // Copies a list, unless it did not fit.
    __device__ void carry_list(Carried& to, Part part) const {
        u32 count = boxes.few[box() * kFew + count_in(part)], start = start_of(part);
#pragma unroll 1
        for (u32 i = threadIdx.x; count <= room_of(part) && i < count; i += kThreads) {
            to.list[start + i] = boxes.list[box() * kListed + start + i];
        }
    }
#endif
};
