// One pass over a row: every token in a range of the order is weighed, and the weights go into bins, into sums by chunk, or
// the tokens into a list. All that is done with a row after the first look is made of such passes, and of finding a token
// in one chunk.
#pragma once
#include "list.cuh"
#include "row.cuh"

template <class Element>
struct Passes {
    const ListMemory& memory;
    const Row<Element>& row;
    Team& team;

    // Runs a pass over the slice and ends the phase. There are four loops, so that each has only the work of its kind in it.
    __device__ void run(const Pass& pass) const {
        u32 sums_used = pass.sink == kToChunks ? row.share : pass.sink == kToBins ? kBins : 0;
        team.sums().clear(sums_used);
        if (pass.sink != kToChunks) each_untouched(pass, [&](u32 token, float x) { take(pass, token, x); });
        else if (pass.weighs_all()) sum_chunks(pass, [&](u32, float x) { return pass.mass(x); });
        else if (pass.only_counts()) sum_chunks(pass, [&](u32 token, float x) { return (u64)pass.has(token, x); });
        else sum_chunks(pass, [&](u32 token, float x) { return pass.weight(token, x); });
        row.each_touched([&](const Touched& touched) {
            take(pass, touched.token, pass.adjusted ? touched.x : touched.raw);
        });
        team.sync(sums_used);
    }

    // Weighs delegates instead of tokens, by their mass or each as 1, in bins by distance from the largest logit.
    __device__ void weigh_delegates(const Pass& pass, bool by_mass) const {
        team.sums().clear(kBins);
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            float x = row.delegate(chunk);
            u64 own = !sees_untouched(pass) || !has_chance(x) ? 0 : by_mass ? pass.mass(x) : 1;
            if (own > 0) team.sums().add(distance_bin(pass.max, x), own);
        }
        team.sync(kBins);
    }

    // After a pass into chunks: what it weighed in one of them, and in all.
    __device__ u64 chunk_sum(u32 chunk) const { return team.sum_of(chunk / row.share, chunk % row.share); }
    __device__ u64 total() const {
        return warp_locate(row.chunks, ~0ull, [&](u32 chunk) { return chunk_sum(chunk); }).before;
    }

    // After a pass into chunks: the first token, by ascending id, at which the running weight exceeds `point`. A number
    // beyond the vocabulary if there is none, which is a bug.
    __device__ u32 find(const Pass& pass, u64 point) const {
        bool leaves_out = pass.adjusted && row.is_listed_only();
        return find_by<4>(point, [&](u32 token, float x, bool touched) {
            if (touched) return pass.weight(token, row.value(pass.adjusted, token));
            return leaves_out ? 0 : pass.weight(token, x);
        });
    }

    // The same by weight(token, logit as sent, whether it is touched), of so many tokens side by side.
    template <u32 kAtOnce, class Weight>
    __device__ u32 find_by(u64 point, Weight weight) const {
        Place chunk = warp_locate(row.chunks, point, [&](u32 c) { return chunk_sum(c); });
        if (row.owns(chunk.index)) find_in<kAtOnce>(chunk.index, point - chunk.before, weight);
        team.sync(0);
        return team.found();
    }

    // After a pass into the list: brings it into each block, in order, and gives its length; kListed + 1 if it did not fit.
    __device__ u32 order_list() const {
        u32 listed = team.gather(memory.masses);
        if (listed > kListed) return kListed + 1;
        memory.put_in_order(listed);
        return listed;
    }

  private:
    __device__ bool sees_untouched(const Pass& pass) const { return !pass.adjusted || !row.is_listed_only(); }

    // Whether the thread has to look at its untouched tokens of a chunk: not if its largest one lies beyond the range.
    __device__ bool looks(const Pass& pass, u32 chunk) const {
        return sees_untouched(pass) && descending(row.delegate(chunk)) <= (u32)(pass.last_key >> 32);
    }

    // The thread's untouched logits of a chunk; minus infinity, which weighs nothing, for tokens that are none.
    __device__ void untouched(u32 chunk, float (&x)[kPerThread]) const {
        uint4 values[Row<Element>::kVectors];
        row.load(chunk, values);
        row.widen(chunk, values, x);
        row.hide_touched(chunk, x);
    }

    template <class Weight>
    __device__ void sum_chunks(const Pass& pass, Weight weight) const {
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            u64 sum = 0;
            if (looks(pass, chunk)) {
                float x[kPerThread];
                untouched(chunk, x);
#pragma unroll
                for (u32 k = 0; k < kPerThread; ++k) sum += weight(row.token_at(chunk, k), x[k]);
            }
            sum = warp_sum(sum);
            if (threadIdx.x % kWarp == 0) team.sums().add(chunk - row.first_chunk, sum);
        }
    }

    template <class F>
    __device__ void each_untouched(const Pass& pass, F f) const {
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            if (!looks(pass, chunk)) continue;
            float x[kPerThread];
            untouched(chunk, x);
#pragma unroll
            for (u32 k = 0; k < kPerThread; ++k) f(row.token_at(chunk, k), x[k]);
        }
    }

    // One token, to wherever the pass goes.
    __device__ void take(const Pass& pass, u32 token, float x) const {
        // Few are, once a search has narrowed: only they are weighed.
        if (!pass.has(token, x)) return;
        u64 own = pass.weight(token, x);
        if (own == 0) return;
        if (pass.sink == kToList) team.append(key_of(token, x));
        else team.sums().add(pass.sink == kToBins ? pass.bin_of(token, x) : token / kChunk - row.first_chunk, own);
    }

    // In one chunk: sums by vector, then by warp and vector, which stand in the order of tokens.
    template <u32 kAtOnce, class Weight>
    __device__ void find_in(u32 chunk, u64 point, Weight weight) const {
        constexpr u32 kVectors = Row<Element>::kVectors;
        u32 warp = threadIdx.x / kWarp;
        __syncthreads();
#pragma unroll 1
        for (u32 j = 0; j < kVectors; ++j) {
            u64 of_warp = warp_sum(vector_sum<kAtOnce>(chunk, j, weight));
            if (threadIdx.x % kWarp == 0) memory.masses[j * kWarps + warp] = of_warp;
        }
        __syncthreads();
        Place part = warp_locate(kVectors * kWarps, point, [&](u32 i) { return memory.masses[i]; });
        u32 j = part.index / kWarps;
        if (j == kVectors || part.index % kWarps != warp) return;
        u64 own = vector_sum<1>(chunk, j, weight), before = part.before + warp_scan(own) - own;
        if (point < before || point >= before + own) return;
        uint4 vector = row.load_one(chunk, j);
        u32 i = 0;
#pragma unroll 1
        for (u64 next = before; (next += vector_weight(chunk, j, vector, i, weight)) <= point;) ++i;
        team.bring_found(row.token_at(chunk, j * Element::kPerVector + i));
    }

    template <u32 kAtOnce, class Weight>
    __device__ u64 vector_sum(u32 chunk, u32 j, Weight weight) const {
        uint4 vector = row.load_one(chunk, j);
        u64 sum = 0;
#pragma unroll kAtOnce
        for (u32 i = 0; i < Element::kPerVector; ++i) sum += vector_weight(chunk, j, vector, i, weight);
        return sum;
    }

    // Of the i-th token of the thread's j-th vector.
    template <class Weight>
    __device__ u64 vector_weight(u32 chunk, u32 j, const uint4& vector, u32 i, Weight weight) const {
        u32 token = row.token_at(chunk, j * Element::kPerVector + i);
        bool touched = row.touched_in(chunk, j) >> i & 1;
        return token < row.vocab_size ? weight(token, element<Element>(vector, i), touched) : 0;
    }
};
