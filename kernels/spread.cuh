// Rows of a draft model that knows only some tokens of the vocabulary, written into a launch's inputs as rows of the whole
// vocabulary. All other tokens get minus infinity. The oracle is src/sampling/spread.rs.
#pragma once
#include "numbers.cuh"

// A logit as its bits. No arithmetic is done with it, so that every NaN stays the one that it was.
template <class Element>
struct Bits {
    using Type = u16;
};
template <>
struct Bits<F32> {
    using Type = u32;
};

// One of the parts of a row, each of which a block writes alone: no block waits for another.
template <class Element>
struct SpreadPart {
    using Logit = typename Bits<Element>::Type;
    u32 begin;  // its first token, the first of a vector
    u32 end;    // not above `begin` if nothing is left for this part

    __device__ SpreadPart(u32 vocab_size, u32 part, u32 parts) {
        u32 vectors = (vocab_size + Element::kPerVector - 1) / Element::kPerVector;
        u32 tokens = (vectors + parts - 1) / parts * Element::kPerVector;
        begin = part * tokens;
        end = begin + tokens < vocab_size ? begin + tokens : vocab_size;
    }

    // A row may be written up to the next multiple of 16 bytes.
    __device__ void mask(u8* row) const {
        constexpr u32 two = Element::kMinusInfinity | Element::kMinusInfinity << 16;
        constexpr u32 word = sizeof(Logit) == 4 ? Element::kMinusInfinity : two;
        uint4* vectors = reinterpret_cast<uint4*>(row);
        u32 end_vector = (end + Element::kPerVector - 1) / Element::kPerVector;
        for (u32 at = begin / Element::kPerVector + threadIdx.x; at < end_vector; at += kThreads) {
            vectors[at] = uint4{word, word, word, word};
        }
    }

    // Its owner may write the row meanwhile, so each logit is read once.
    __device__ void put(u8* row, const volatile Logit* sent, const u32* tokens, u32 columns) const {
        Logit* logits = reinterpret_cast<Logit*>(row);
#pragma unroll 4
        for (u32 column = threadIdx.x; column < columns; column += kThreads) {
            u32 token = tokens[column];
            if (token >= begin && token < end) logits[token] = sent[column];
        }
    }
};

// Grid: (1, parts of all rows). `inputs` and `outputs` are the same memory.
template <class Element>
__device__ void spread_rows(const u8* inputs, u8* outputs, u32 rows, u32 parts, u32 jobs_at) {
    using Part = SpreadPart<Element>;
    u32 row = blockIdx.y / parts;
    if (row >= rows) return;
    const SpreadJob& job = reinterpret_cast<const SpreadJob*>(inputs + jobs_at)[row];
    const Part part(job.vocab_size, blockIdx.y % parts, parts);
    u8* to = outputs + job.to;
    part.mask(to);
    __syncthreads();
    part.put(to, reinterpret_cast<const volatile typename Part::Logit*>(job.from), reinterpret_cast<const u32*>(inputs + job.tokens),
             job.columns);
}
