// Finds the token at which the running sum of weights exceeds a point, after a pass into sums by chunk (pass.cuh).
#pragma once
#include "pass.cuh"

template <class Element>
struct Finding {
    const Passes<Element>& passes;

    // The first token, by ascending id, at which the running sum exceeds `point`. A number beyond the vocabulary if there is none,
    // which is a bug.
    __device__ u32 find(const Pass& pass, u64 point) const {
        const Row<Element>& row = passes.row;
        bool leaves_out = pass.adjusted && row.is_listed_only();
        return find_by(point, [&](u32 token, float x, bool touched) {
            if (touched) return pass.weight(token, row.value(pass.adjusted, token));
            return leaves_out ? 0 : pass.weight(token, x);
        });
    }

    // The same with weight(token, logit as sent, whether it is touched) as weights. A touched token has an adjust.
    template <class Weight>
    __device__ u32 find_by(u64 point, Weight weight) const {
        const Row<Element>& row = passes.row;
        Place chunk = warp_locate(row.chunks(), point, [&](u32 c) { return passes.chunk_sum(c); });
        if (row.owns(chunk.index)) find_in(chunk.index, point - chunk.before, weight);
        passes.team.sync(0);
        return passes.team.found();
    }

  private:
    // In one chunk: first the warp that has the point among its tokens, then the token, of which each thread takes one.
    template <class Weight>
    __device__ void find_in(u32 chunk, u64 point, Weight weight) const {
        constexpr u32 kPart = Row<Element>::kWarpTokens;
        const Row<Element>& row = passes.row;
        Place part = warp_locate(kWarps, point, [&](u32 warp) {
            return passes.team.own_sum(passes.part_of(chunk - row.first_chunk, warp));
        });
        if (part.index == kWarps) return;
        u32 first = chunk * kChunk + part.index * kPart;
        Place place = passes.memory.block.locate(kPart, point - part.before, [&](u32 i) -> u64 {
            u32 token = first + i;
            return token < row.vocab_size ? weight(token, row.logit_of_slice(token), row.is_touched(token)) : 0;
        });
        if (threadIdx.x == 0 && place.index < kPart) passes.team.bring_found(first + place.index);
    }
};
