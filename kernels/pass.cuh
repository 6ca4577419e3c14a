// One pass over a row: every token in a range of the order is weighed, and the weights go into bins, into sums by chunk, or
// the tokens into a list. All that is done with a row after the first look is made of such passes; this loop is the only
// one over its logits.
#pragma once
#include "list.cuh"
#include "row.cuh"

template <class Element>
struct Passes {
    const ListMemory& memory;
    const Row<Element>& row;
    Team& team;

    // Runs a pass over the slice and ends the phase.
    __device__ const Exchange& run(const Pass& pass) const {
        memory.bins.clear();
        // A thread whose largest untouched logit lies beyond the range need not look at its untouched ones again.
        u32 least = ~(u32)(pass.last_key >> 32);
        bool sees_untouched = !pass.adjusted || !row.is_listed_only();
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            u64 sum = 0;
            auto take = [&](u32 token, float x) {
                u64 own = pass.weight(token, x);
                if (own == 0) return;
                if (pass.sink == kToChunks) sum += own;
                else if (pass.sink == kToBins) memory.bins.add(pass.bin_of(token, x), own);
                else append(key_of(token, x));
            };
            if (sees_untouched && ascending(row.delegate(chunk)) >= least) {
                uint4 values[Row<Element>::kVectors];
                row.load(chunk, values);
                row.each_loaded(chunk, values, [&](u32 token, float x, bool touched) {
                    if (!touched) take(token, x);
                });
            }
            row.each_touched(chunk, [&](u32 token, float raw, float x) { take(token, pass.adjusted ? x : raw); });
            if (pass.sink == kToChunks) {
                sum = warp_sum(sum);
                if (threadIdx.x % kWarp == 0) memory.bins.add(chunk - row.first_chunk, sum);
            }
        }
        return complete(pass.sink);
    }

    // Counts delegates instead of tokens, by distance from `max`.
    __device__ const Exchange& count_delegates(float max) const {
        memory.bins.clear();
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            float x = row.delegate(chunk);
            if (has_chance(x)) memory.bins.add(distance_bin(max, x), 1);
        }
        return complete(kToBins);
    }

    // What a pass into chunks weighed.
    __device__ u64 total(const Exchange& sums) const {
        return memory.block.locate(row.chunks, ~0ull, [&](u32 chunk) { return sums.chunk_sums[chunk]; }).before;
    }

    // After a pass into chunks: the first token, by ascending id, at which the running weight exceeds `point`. A number
    // beyond the vocabulary if there is none, which is a bug.
    __device__ u32 find(const Pass& pass, const Exchange& sums, u64 point) const {
        return find_by(sums, point, [&](u32 token) { return pass.weight(token, row.value(pass.adjusted, token)); });
    }

    // The same by the weight of each token.
    template <class Weight>
    __device__ u32 find_by(const Exchange& sums, u64 point, Weight weight) const {
        Place chunk = memory.block.locate(row.chunks, point, [&](u32 c) { return sums.chunk_sums[c]; });
        if (row.owns(chunk.index)) {
            u32 first = chunk.index * kChunk;
            Place place = memory.block.locate(kChunk, point - chunk.before, [&](u32 i) -> u64 {
                u32 token = first + i;
                return token < row.job.vocab_size ? weight(token) : 0;
            });
            if (threadIdx.x == 0) team.exchange().found = first + place.index + 1;
        }
        return team.sync().found - 1;
    }

    // After a pass into the list: brings it into each block, in order (a key's place is the number of smaller ones), and
    // gives its length; kListed + 1 if it did not fit.
    __device__ u32 order_list(const Exchange& exchange) const {
        u32 listed = exchange.count;
        if (listed > kListed) return kListed + 1;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < listed; i += kThreads) memory.masses[i] = exchange.list[i];
        __syncthreads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < listed; i += kThreads) {
            u64 key = memory.masses[i];
            u32 place = 0;
#pragma unroll 1
            for (u32 j = 0; j < listed; ++j) place += memory.masses[j] < key;
            memory.list[place] = key;
        }
        __syncthreads();
        return listed;
    }

  private:
    __device__ void append(u64 key) const {
        Exchange& exchange = team.exchange();
        u32 at = atomicAdd(&exchange.count, 1u);
        if (at < kListed) exchange.list[at] = key;
    }

    __device__ const Exchange& complete(Sink sink) const {
        __syncthreads();
        Exchange& exchange = team.exchange();
        if (sink == kToBins) {
#pragma unroll 1
            for (u32 bin = threadIdx.x; bin < kBins; bin += kThreads) {
                u64 own = memory.bins.get(bin);
                if (own > 0) atomicAdd(&exchange.bins[bin], own);
            }
        } else if (sink == kToChunks) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < row.end_chunk - row.first_chunk; i += kThreads) {
                exchange.chunk_sums[row.first_chunk + i] = memory.bins.get(i);
            }
        }
        return team.sync();
    }
};
