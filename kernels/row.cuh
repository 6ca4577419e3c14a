// One row as a block sees it: its slice, which is the chunks that the block works on, as sent or with masks, bias and penalties
// applied.
//
// What is known about a token is its adjust. Few tokens have one; they are called touched. A bitmap in shared memory hides them:
// passes visit the untouched tokens first, and then the touched ones with their adjusted logits. Only the sum of all masses as sent
// hides none.
#pragma once
#include "job_row.cuh"

// A touched token: its logit as sent, and adjusted.
struct Touched {
    u32 token;
    float raw;
    float x;
};

constexpr u32 kJobWords = sizeof(RowJob) / 4;

struct RowMemory {
    Shared<u32> jobs;         // the job of this row and that of the next, in alternating places
    Shared<u32> touched;      // a bit per token of the slice
    // For each thread, a bit per chunk in which it has touched tokens; after the first look, only if one of them is above its
    // delegate as sent.
    Shared<u32> touching;
    Shared<Touched> adjusted; // the first of each thread's touched tokens
    Shared<float> delegates;  // the largest untouched logit that each thread has in each chunk
    Shared<uint4> cache;      // the slice's first chunks, as many as the launch gave room for

    // For slices of `slice_chunks` chunks.
    __device__ RowMemory(Carver& carver, u32 slice_chunks, u32 cached_vectors)
        : jobs(carver.take<u32>(2 * kJobWords)),
          touched(carver.take<u32>(slice_chunks * kChunk / 32)),
          touching(carver.take<u32>(kThreads)),
          adjusted(carver.take<Touched>(kThreads)),
          delegates(carver.take<float>(slice_chunks * kThreads)),
          cache(carver.take<uint4>(cached_vectors)) {}

    // Copies a row's job to one of two places here, where reading it costs little.
    __device__ void bring(const RowJob& from, u32 place) const {
        const u32* words = reinterpret_cast<const u32*>(&from);
#pragma unroll 1
        for (u32 i = threadIdx.x; i < kJobWords; i += kThreads) jobs[place * kJobWords + i] = words[i];
    }

    // The job at a place, after a barrier.
    __device__ const RowJob& job(u32 place) const { return whole<RowJob>(jobs, place * kJobWords); }

    // In weigh_rows, the second place has the first draft of the row at the first place; zeros, so no row and no mass, if there is
    // none.
    __device__ void bring_draft(const u8* inputs) const {
        constexpr u32 words = sizeof(DraftRow) / 4;
        if (threadIdx.x >= words) return;
        const u32* from = reinterpret_cast<const u32*>(inputs + job(0).drafts);
        jobs[kJobWords + threadIdx.x] = job(0).draft_count > 0 ? from[threadIdx.x] : 0;
    }
    __device__ const DraftRow& draft() const { return whole<DraftRow>(jobs, kJobWords); }
    static_assert(sizeof(DraftRow) <= sizeof(RowJob) && sizeof(RowJob) % alignof(DraftRow) == 0, "it has room");
};

// The largest of a thread's logits; NaN if any is.
__device__ inline float largest(const float (&x)[kPerThread]) {
    // Four independent chains, since each step of a chain waits for the one before.
    float a = x[0], b = x[1], c = x[2], d = x[3];
#pragma unroll
    for (u32 k = 4; k < kPerThread; k += 4) {
        a = max_or_nan(a, x[k]);
        b = max_or_nan(b, x[k + 1]);
        c = max_or_nan(c, x[k + 2]);
        d = max_or_nan(d, x[k + 3]);
    }
    return max_or_nan(max_or_nan(a, b), max_or_nan(c, d));
}

template <class Element>
struct Row : JobRow<Element> {
    using Base = JobRow<Element>;
    using Base::adjust_index, Base::adjusts, Base::kChunkVectors, Base::kVectors, Base::kWarpTokens, Base::raw_of, Base::value_of;

    const RowMemory& memory;
    const RowJob& job;
    const u8* inputs;
    u32 vocab_size;
    u32 share;        // chunks of a slice
    u32 first_chunk;  // of the slice
    u32 end_chunk;
    u32 first_touched;  // index of the slice's first adjust
    u32 end_touched;
    u32 cached_end;  // chunks of the slice before this one are in the cache

    __device__ Row(const RowMemory& memory, const RowJob& job, const u8* inputs, const Team& team, u32 cached_vectors)
        : memory(memory),
          job(job),
          inputs(inputs),
          vocab_size(job.vocab_size),
          share(share_of(chunks(), team.size)),
          first_touched(0),
          end_touched(0) {
        // No token counts as touched before `mark_touched`.
        first_chunk = team.rank * share < chunks() ? team.rank * share : chunks();
        end_chunk = first_chunk + share < chunks() ? first_chunk + share : chunks();
        cached_end = first_chunk + cached_vectors / kChunkVectors;
    }

    // Marks the slice's touched tokens, before any part of the row is cached. The prefetch of a team's first row is under way
    // meanwhile. All threads of the block call it, after a barrier. Afterwards they see each other's marks.
    __device__ void mark_touched() {
        if (job.adjust_count == 0 || first_chunk == end_chunk) return;
        first_touched = adjust_index(job, inputs)[first_chunk];
        end_touched = adjust_index(job, inputs)[end_chunk];
        if (!has_touched()) return;
        TokenAdjust adjust{0, 0, 0.0f, 0};
        bool has_one = first_touched + threadIdx.x < end_touched;
        if (has_one) adjust = adjusts(job, inputs)[first_touched + threadIdx.x];
        u32 words = (end_chunk - first_chunk) * kChunk / 32;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < words; i += kThreads) memory.touched[i] = 0;
        memory.touching[threadIdx.x] = 0;
        float x = has_one ? raw_of(job, inputs, adjust.token) : 0.0f;
        __syncthreads();
        if (has_one) {
            mark(adjust.token);
            memory.adjusted[threadIdx.x] = Touched{adjust.token, x, adjusted_logit(adjust, x, job)};
        }
#pragma unroll 1
        for (u32 i = first_touched + kThreads + threadIdx.x; i < end_touched; i += kThreads) mark(adjusts(job, inputs)[i].token);
        __syncthreads();
    }

    // Computed again wherever they are needed, because a pass is short of registers.
    __device__ u32 chunks() const { return (vocab_size + kChunk - 1) / kChunk; }
    __device__ const uint4* vectors() const { return reinterpret_cast<const uint4*>(inputs + job.logits); }
    __device__ const u32* requested() const { return reinterpret_cast<const u32*>(inputs + job.requested); }

    // Whether no token of the chunk is beyond the row's end.
    __device__ bool is_whole(u32 chunk) const { return (chunk + 1) * kChunk <= vocab_size; }
    __device__ bool owns(u32 chunk) const { return first_chunk <= chunk && chunk < end_chunk; }
    // The thread's delegate in a chunk: its largest untouched logit there.
    __device__ float delegate(u32 chunk) const {
        return memory.delegates[(chunk - first_chunk) * kThreads + threadIdx.x];
    }
    __device__ void set_delegate(u32 chunk, float x) const {
        memory.delegates[(chunk - first_chunk) * kThreads + threadIdx.x] = x;
    }
    __device__ bool is_listed_only() const { return job.flags & kOnlyListed; }

    // The logits of the thread's vectors in a chunk. For a whole chunk, as all but a row's last are, there is one branch for all
    // vectors. In a last chunk that is not whole, the row's last vector stands in for those beyond the end, and its logits are not
    // used.
    __device__ void load(u32 chunk, uint4 (&values)[kVectors]) const {
        u32 first = vector_of(chunk, 0);
        if (!is_whole(chunk)) {
            u32 last = (vocab_size - 1) / Element::kPerVector;
#pragma unroll
            for (u32 j = 0; j < kVectors; ++j) {
                u32 vector = first + j * kWarp;
                values[j] = vector_at(vectors(), chunk, vector < last ? vector : last);
            }
        } else if (chunk < cached_end) {
#pragma unroll
            for (u32 j = 0; j < kVectors; ++j) values[j] = memory.cache[first - first_chunk * kChunkVectors + j * kWarp];
        } else {
            const uint4* from = vectors() + first;
#pragma unroll
            for (u32 j = 0; j < kVectors; ++j) values[j] = from[j * kWarp];
        }
    }

    // The logits of the thread's j-th vector in a chunk; zeros beyond the row's end.
    __device__ uint4 load_one(u32 chunk, u32 j) const { return load_one(vectors(), chunk, j); }

    // Like `load`, for the first look: reads global memory, and fills the cache. Zeros beyond the row's end.
    __device__ void load_first(u32 chunk, uint4 (&values)[kVectors]) const {
        const uint4* from = vectors();
#pragma unroll
        for (u32 j = 0; j < kVectors; ++j) {
            u32 vector = vector_of(chunk, j);
            values[j] = uint4{0, 0, 0, 0};
            if (vector * Element::kPerVector >= vocab_size) continue;
            values[j] = from[vector];
        }
        if (chunk >= cached_end) return;
#pragma unroll
        for (u32 j = 0; j < kVectors; ++j) {
            u32 vector = vector_of(chunk, j);
            if (vector * Element::kPerVector >= vocab_size) continue;
            memory.cache[vector - first_chunk * kChunkVectors] = values[j];
        }
    }

    __device__ bool has_touched() const { return first_touched < end_touched; }

    // The thread's k-th token of a chunk, in ascending order.
    __device__ u32 token_at(u32 chunk, u32 k) const {
        return vector_of(chunk, k / Element::kPerVector) * Element::kPerVector + k % Element::kPerVector;
    }

    // The logits of loaded vectors; minus infinity for tokens beyond the row's end.
    __device__ void widen(u32 chunk, const uint4 (&values)[kVectors], float (&x)[kPerThread]) const {
#pragma unroll
        for (u32 k = 0; k < kPerThread; ++k) {
            x[k] = element<Element>(values[k / Element::kPerVector], k % Element::kPerVector);
        }
        if (is_whole(chunk)) return;
#pragma unroll
        for (u32 k = 0; k < kPerThread; ++k) {
            if (token_at(chunk, k) >= vocab_size) x[k] = minus_infinity();
        }
    }

    // Replaces the logits of touched tokens by minus infinity.
    __device__ void hide_touched(u32 chunk, float (&x)[kPerThread]) const {
        if (!has_touched()) return;
#pragma unroll
        for (u32 j = 0; j < kVectors; ++j) {
            u32 touched = touched_in(chunk, j);
            if (touched == 0) continue;
#pragma unroll
            for (u32 i = 0; i < Element::kPerVector; ++i) {
                if (touched >> i & 1) x[j * Element::kPerVector + i] = minus_infinity();
            }
        }
    }

    // The thread's logits of a chunk; minus infinity, which weighs nothing, beyond the row's end.
    __device__ void load_logits(u32 chunk, float (&x)[kPerThread]) const {
        uint4 values[kVectors];
        load(chunk, values);
        widen(chunk, values, x);
    }

    // The same, with minus infinity for touched tokens too.
    __device__ void load_untouched(u32 chunk, float (&x)[kPerThread]) const {
        load_logits(chunk, x);
        hide_touched(chunk, x);
    }

    // Which tokens of the thread's j-th vector of a chunk are touched, lowest bit first.
    __device__ u32 touched_in(u32 chunk, u32 j) const {
        u32 token = vector_of(chunk, j) * Element::kPerVector;
        if (!has_touched() || token >= vocab_size) return 0;
        return touched_from(token) & ((1u << Element::kPerVector) - 1);
    }

    // A bit for each chunk of the slice in which the thread has touched tokens, lowest bit first.
    __device__ u32 touching() const { return has_touched() ? (u32)memory.touching[threadIdx.x] : 0; }

    // After the first look, a bit for each chunk in which one of them is larger, as sent, than the thread's delegate. It takes the
    // same place, which no other thread reads.
    __device__ u32 above() const { return touching(); }
    __device__ void set_above(u32 chunks) const {
        if (has_touched()) memory.touching[threadIdx.x] = chunks;
    }

    __device__ bool is_touched(u32 token) const { return has_touched() && (touched_from(token) & 1) != 0; }

    // The logit as sent of a token of the slice.
    __device__ float logit_of_slice(u32 token) const {
        return element<Element>(vector_at(vectors(), token / kChunk, token / Element::kPerVector), token % Element::kPerVector);
    }

    // A thread's j-th vector of a chunk: its first token, its logits, and which of its tokens exist and are untouched.
    struct Vector {
        u32 token;
        uint4 logits;
        u32 which;
    };
    __device__ Vector vector_of_thread(u32 chunk, u32 thread, u32 j) const {
        u32 vector = vector_of(chunk, thread, j), token = vector * Element::kPerVector;
        return Vector{token, vector_at(vectors(), chunk, vector), untouched_of(token)};
    }

    // Which tokens of the vector that begins with `token` exist and are untouched, lowest bit first.
    __device__ u32 untouched_of(u32 token) const {
        if (token >= vocab_size) return 0;
        u32 left = vocab_size - token, all = (1u << Element::kPerVector) - 1;
        u32 which = left < Element::kPerVector ? all >> (Element::kPerVector - left) : all;
        return has_touched() ? which & ~touched_from(token) : which;
    }

    // The logit as sent of the thread's k-th token of a chunk.
    __device__ float logit_at(u32 chunk, u32 k) const {
        return element<Element>(load_one(chunk, k / Element::kPerVector), k % Element::kPerVector);
    }

    // Which of the four tokens from `token` on exist and are untouched, lowest bit first. `token` is a multiple of four.
    __device__ u32 which_of_four(u32 token) const {
        if (token >= vocab_size) return 0;
        u32 which = vocab_size - token < 4 ? (1u << (vocab_size - token)) - 1 : 15;
        return has_touched() ? which & ~touched_from(token) : which;
    }

    // Calls f(touched, index of its adjust) for the thread's share of the slice's touched tokens.
    template <class F>
    __device__ void each_touched(F f) const {
#pragma unroll 1
        for (u32 i = first_touched + threadIdx.x; i < end_touched; i += kThreads) {
            f(i - first_touched < kThreads ? Touched(memory.adjusted[threadIdx.x]) : touched_at(i), i);
        }
    }

    // The logit of any token, of whatever slice.
    __device__ float value(bool adjusted, u32 token) const { return value_of(job, inputs, adjusted, token); }

    __device__ float raw_value(u32 token) const { return raw_of(job, inputs, token); }

    // The index of a token's adjust, or kNoAdjust.
    __device__ u32 adjust_of(u32 token) const { return Base::adjust_of(job, inputs, token); }

  private:
    // A warp's tokens of a chunk are consecutive.
    __device__ static u32 vector_of(u32 chunk, u32 thread, u32 j) {
        return chunk * kChunkVectors + (thread / kWarp * kVectors + j) * kWarp + thread % kWarp;
    }
    __device__ static u32 vector_of(u32 chunk, u32 j) { return vector_of(chunk, threadIdx.x, j); }

    __device__ void mark(u32 token) const {
        u32 at = token - first_chunk * kChunk;
        shared_or(memory.touched, at / 32, 1u << (at % 32));
        shared_or(memory.touching, thread_of(token), 1u << (at / kChunk));
    }

    __device__ static u32 thread_of(u32 token) {
        u32 vector = token % kChunk / Element::kPerVector;
        return vector / (kWarp * kVectors) * kWarp + vector % kWarp;
    }

    __device__ uint4 load_one(const uint4* from, u32 chunk, u32 j) const {
        return vector_at(from, chunk, vector_of(chunk, j));
    }

    // A vector of a chunk; zeros beyond the row's end.
    __device__ uint4 vector_at(const uint4* from, u32 chunk, u32 vector) const {
        if (vector * Element::kPerVector >= vocab_size) return uint4{0, 0, 0, 0};
        return chunk < cached_end ? uint4(memory.cache[vector - first_chunk * kChunkVectors]) : from[vector];
    }

    __device__ Touched touched_at(u32 i) const {
        TokenAdjust adjust = adjusts(job, inputs)[i];
        float x = logit_of_slice(adjust.token);
        return Touched{adjust.token, x, adjusted_logit(adjust, x, job)};
    }

    // Which of the tokens from `token` on are touched, lowest bit first. The bits of a vector are in one word.
    __device__ u32 touched_from(u32 token) const {
        u32 at = token - first_chunk * kChunk;
        return memory.touched[at / 32] >> (at % 32);
    }
};
