// One row as a block sees it: the chunks of its slice, as sent or with masks, bias and penalties applied.
//
// Adjusts are sparse. A bitmap in shared memory hides the tokens that have one; passes visit the other tokens first and
// the hidden ones with their adjusted logits after them.
#pragma once
#include "block.cuh"
#include "numbers.cuh"
#include "team.cuh"

struct RowMemory {
    Shared<u32> touched;      // a bit per token of the slice
    Shared<float> delegates;  // the largest untouched logit that a thread has in a chunk
    Shared<uint4> cache;      // the slice, if the launch gave room for it

    __device__ RowMemory(Carver& carver, u32 cached_vectors)
        : touched(carver.take<u32>(kSliceChunks * kChunk / 32)),
          delegates(carver.take<float>(kSliceChunks * kThreads)),
          cache(carver.take<uint4>(cached_vectors)) {}
};

constexpr u32 kNoAdjust = ~0u;

template <class Element>
struct Row {
    static constexpr u32 kVectors = kPerThread / Element::kPerVector;
    static constexpr u32 kChunkVectors = kThreads * kVectors;

    const RowMemory& memory;
    const RowJob& job;
    const u8* inputs;
    const uint4* vectors;
    u32 chunks;
    u32 first_chunk;  // of the slice
    u32 end_chunk;
    bool cached;

    __device__ Row(const RowMemory& memory, const RowJob& job, const u8* inputs, const Team& team, u32 cached_vectors)
        : memory(memory),
          job(job),
          inputs(inputs),
          vectors(reinterpret_cast<const uint4*>(inputs + job.logits)),
          chunks((job.vocab_size + kChunk - 1) / kChunk) {
        u32 share = (chunks + team.size - 1) / team.size;
        first_chunk = team.rank * share < chunks ? team.rank * share : chunks;
        end_chunk = first_chunk + share < chunks ? first_chunk + share : chunks;
        cached = share * kChunkVectors <= cached_vectors;
        mark_touched();
    }

    // Found anew where they are needed, which is seldom: registers are what a pass is short of.
    __device__ const TokenAdjust* adjusts() const { return reinterpret_cast<const TokenAdjust*>(inputs + job.adjusts); }
    __device__ const u32* adjust_index() const { return reinterpret_cast<const u32*>(inputs + job.adjust_index); }
    __device__ const u32* requested() const { return reinterpret_cast<const u32*>(inputs + job.requested); }

    __device__ bool owns(u32 chunk) const { return first_chunk <= chunk && chunk < end_chunk; }
    // The largest untouched logit of the thread's in a chunk.
    __device__ float delegate(u32 chunk) const {
        return memory.delegates[(chunk - first_chunk) * kThreads + threadIdx.x];
    }
    __device__ bool is_listed_only() const { return job.flags & kOnlyListed; }

    // The logits of the thread's vectors in a chunk.
    __device__ void load(u32 chunk, uint4 (&values)[kVectors]) const {
#pragma unroll
        for (u32 j = 0; j < kVectors; ++j) {
            u32 vector = vector_of(chunk, j);
            if (vector * Element::kPerVector >= job.vocab_size) continue;
            values[j] = cached ? memory.cache[vector - first_chunk * kChunkVectors] : vectors[vector];
        }
    }

    // As `load`, before anything is cached.
    __device__ void load_first(u32 chunk, uint4 (&values)[kVectors]) const {
#pragma unroll
        for (u32 j = 0; j < kVectors; ++j) {
            u32 vector = vector_of(chunk, j);
            if (vector * Element::kPerVector >= job.vocab_size) continue;
            values[j] = vectors[vector];
            if (cached) memory.cache[vector - first_chunk * kChunkVectors] = values[j];
        }
    }

    // Calls f(token, logit, touched) for the thread's tokens in loaded vectors, in ascending order.
    template <class F>
    __device__ void each_loaded(u32 chunk, const uint4 (&values)[kVectors], F f) const {
#pragma unroll
        for (u32 j = 0; j < kVectors; ++j) {
            u32 token = vector_of(chunk, j) * Element::kPerVector;
            if (token >= job.vocab_size) continue;
            u32 touched = touched_from(token);
#pragma unroll
            for (u32 i = 0; i < Element::kPerVector; ++i) {
                if (token + i < job.vocab_size) f(token + i, element<Element>(values[j], i), (touched >> i & 1) != 0);
            }
        }
    }

    // Calls f(token, logits, which) for the thread's untouched tokens of a chunk, four at a time: of the four from `token` on,
    // those whose bit is set.
    template <class F>
    __device__ void each_four(u32 chunk, F f) const {
#pragma unroll 1
        for (u32 j = 0; j < kVectors; ++j) {
            u32 token = vector_of(chunk, j) * Element::kPerVector;
            if (token >= job.vocab_size) return;
            uint4 values = vectors[vector_of(chunk, j)];
            u32 touched = touched_from(token);
#pragma unroll 1
            for (u32 first = 0; first < Element::kPerVector; first += 4) {
                float x[4];
                u32 which = 0;
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    x[i] = element<Element>(values, first + i);
                    bool is_one = token + first + i < job.vocab_size && (touched >> (first + i) & 1) == 0;
                    which |= (u32)is_one << i;
                }
                if (which != 0) f(token + first, x, which);
            }
        }
    }

    // Calls f(token, raw logit, adjusted logit) for the thread's share of the adjusted tokens of a chunk.
    template <class F>
    __device__ void each_touched(u32 chunk, F f) const {
        if (job.adjust_count == 0) return;
#pragma unroll 1
        for (u32 i = adjust_index()[chunk] + threadIdx.x; i < adjust_index()[chunk + 1]; i += kThreads) {
            TokenAdjust adjust = adjusts()[i];
            float x = raw(adjust.token);
            f(adjust.token, x, adjusted_logit(adjust, x, job));
        }
    }

    // One token's logit as sent.
    __device__ float raw(u32 token) const {
        return element<Element>(vectors[token / Element::kPerVector], token % Element::kPerVector);
    }

    // One token's logit, of any slice.
    __device__ float value(bool adjusted, u32 token) const {
        if (!adjusted) return raw(token);
        u32 at = adjust_of(token);
        if (at != kNoAdjust) return adjusted_logit(adjusts()[at], raw(token), job);
        return is_listed_only() ? minus_infinity() : raw(token);
    }

    // The place of one token's adjust.
    __device__ u32 adjust_of(u32 token) const {
        u32 from = 0, to = 0;
        if (job.adjust_count > 0) {
            from = adjust_index()[token / kChunk];
            to = adjust_index()[token / kChunk + 1];
        }
#pragma unroll 1
        while (from < to) {
            u32 middle = from + (to - from) / 2;
            if (adjusts()[middle].token < token) from = middle + 1;
            else to = middle;
        }
        return from < job.adjust_count && adjusts()[from].token == token ? from : kNoAdjust;
    }

  private:
    __device__ u32 vector_of(u32 chunk, u32 j) const { return chunk * kChunkVectors + j * kThreads + threadIdx.x; }

    // Which of the tokens from `token` on are touched, lowest bit first; a vector's bits lie in one word.
    __device__ u32 touched_from(u32 token) const {
        if (job.adjust_count == 0) return 0;
        u32 at = token - first_chunk * kChunk;
        return memory.touched[at / 32] >> (at % 32);
    }

    __device__ void mark_touched() const {
        if (job.adjust_count == 0 || first_chunk == end_chunk) return;
        u32 words = (end_chunk - first_chunk) * kChunk / 32;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < words; i += kThreads) memory.touched[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (u32 i = adjust_index()[first_chunk] + threadIdx.x; i < adjust_index()[end_chunk]; i += kThreads) {
            u32 at = adjusts()[i].token - first_chunk * kChunk;
            shared_or(memory.touched, at / 32, 1u << (at % 32));
        }
        __syncthreads();
    }
};
