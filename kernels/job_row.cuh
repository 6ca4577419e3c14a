// What a row's job says about the row, however the row is cut into slices (the chunks that one block works on): single logits, its
// adjusts (what is known about single tokens), and how a slice is prefetched.
#pragma once
#include "numbers.cuh"
#include "team.cuh"

constexpr u32 kNoAdjust = ~0u;

template <class Element>
struct JobRow {
    static constexpr u32 kVectors = kPerThread / Element::kPerVector;
    // A warp has this many consecutive tokens of a chunk.
    static constexpr u32 kWarpTokens = kWarp * kPerThread;
    static constexpr u32 kChunkVectors = kThreads * kVectors;

    __device__ static const TokenAdjust* adjusts(const RowJob& job, const u8* inputs) {
        return reinterpret_cast<const TokenAdjust*>(inputs + job.adjusts);
    }
    __device__ static const u32* adjust_index(const RowJob& job, const u8* inputs) {
        return reinterpret_cast<const u32*>(inputs + job.adjust_index);
    }

    __device__ static float raw_of(const RowJob& job, const u8* inputs, u32 token) {
        const uint4* vectors = reinterpret_cast<const uint4*>(inputs + job.logits);
        return element<Element>(vectors[token / Element::kPerVector], token % Element::kPerVector);
    }

    __device__ CROUPIER_ONCE static float value_of(const RowJob& job, const u8* inputs, bool adjusted, u32 token) {
        float x = raw_of(job, inputs, token);
        if (!adjusted) return x;
        u32 at = adjust_of(job, inputs, token);
        if (at != kNoAdjust) return adjusted_logit(adjusts(job, inputs)[at], x, job);
        return job.flags & kOnlyListed ? minus_infinity() : x;
    }

    __device__ static u32 adjust_of(const RowJob& job, const u8* inputs, u32 token) {
        if (job.adjust_count == 0) return kNoAdjust;
        const TokenAdjust* all = adjusts(job, inputs);
        u32 from = adjust_index(job, inputs)[token / kChunk], to = adjust_index(job, inputs)[token / kChunk + 1];
#pragma unroll 1
        while (from < to) {
            u32 middle = from + (to - from) / 2;
            if (all[middle].token < token) from = middle + 1;
            else to = middle;
        }
        return from < job.adjust_count && all[from].token == token ? from : kNoAdjust;
    }

    // Prefetches the block's slice of a row before anything reads it.
    __device__ static void fetch_slice([[maybe_unused]] const RowJob& job, [[maybe_unused]] const u8* inputs,
                                       [[maybe_unused]] const Team& team) {
#if CROUPIER_CLUSTER
        if (team.leads() && threadIdx.x == kWarp && job.adjust_count > 0) fetch_adjusts(job, inputs);
        // Not in the first warp, since the team's barriers may wait for its memory requests. One lane asks for the whole slice,
        // since lanes would ask one after the other.
        static_assert(kSliceChunks * kChunkVectors * 16 < kFetchEnd, "a slice is fetched whole");
        if (threadIdx.x != kThreads - kWarp) return;
        u32 share = share_of((job.vocab_size + kChunk - 1) / kChunk, team.size);
        u32 end = (job.vocab_size + Element::kPerVector - 1) / Element::kPerVector, first = team.rank * share * kChunkVectors;
        u32 last = first + share * kChunkVectors < end ? first + share * kChunkVectors : end;
        if (first >= last) return;
        fetch_ahead(reinterpret_cast<const uint4*>(inputs + job.logits) + first, (last - first) * 16);
#endif
    }

#if CROUPIER_CLUSTER
  private:
    // Prefetches the adjusts, of which few rows have more than `most`, and their index, because they are read one after the other:
    // the index, then the adjusts.
    __device__ static void fetch_adjusts(const RowJob& job, const u8* inputs) {
        constexpr u32 most = 4096;
        u32 count = job.adjust_count < most ? job.adjust_count : most;
        u32 words = (job.vocab_size + kChunk - 1) / kChunk + 1;
        fetch_around(inputs, job.adjusts, count * sizeof(TokenAdjust));
        fetch_around(inputs, job.adjust_index, words * sizeof(u32));
    }

    // Prefetches these bytes, extended to multiples of 16 at both ends. The logits come later in the inputs, at such a multiple.
    __device__ static void fetch_around(const u8* inputs, u64 from, u32 bytes) {
        u64 first = from / 16 * 16, end = (from + bytes + 15) / 16 * 16;
        fetch_ahead(inputs + first, (u32)(end - first));
    }
#endif
};
