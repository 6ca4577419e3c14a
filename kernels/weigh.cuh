// What verification needs of a target row whose distribution is known: how much the row has beyond the distributions that
// draft tokens were drawn from, and a token drawn from that; its entropy; what a draft gives to the tokens that it leaves.
// One pass, and where a token is drawn one chunk in token order. The walk along a draft is the host's
// (src/backend/cuda/verify/mod.rs), with the rules of src/speculative.
#pragma once
#include "pass.cuh"

__device__ inline float value_of(const u8* row, u32 format, u32 token) {
    if (format == kRowF32) return reinterpret_cast<const float*>(row)[token];
    u32 half = reinterpret_cast<const u16*>(row)[token];
    return format == kRowF16 ? F16::widen(half, 0) : Bf16::widen(half, 0);
}

// The mass that a draft token's distribution gives to a token of which there is no adjust.
__device__ inline u64 drafted_mass(const DraftRow& draft, const u8* inputs, u32 token) {
    if (draft.format == kNoRow || token >= draft.vocab_size) return 0;
    float x = value_of(inputs + draft.row, draft.format & 3, token);
    // ceil(x * 2^40): the product is exact.
    if (draft.format & kSent) return (u64)ceilf(x * 1099511627776.0f);
    if (key_of(token, x) > draft.last_key) return 0;
    u64 mass = mass_of_exponent(exponent(x, draft.max, draft.scale));
    return mass < draft.need ? 0 : mass;
}

template <class Element>
struct Weigher {
    const Passes<Element>& passes;
    const Row<Element>& row;
    const u8* inputs;

    __device__ void run(RowResult& result) const {
        const Block& block = passes.memory.block;
        // Nobody of the row before needs the adjusts' bitmap any more: `find_by` ends with a barrier.
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            u64 sum = block.sum(weigh_chunk(chunk));
            if (threadIdx.x == 0) passes.team.exchange().chunk_sums[chunk] = sum;
        }
        const Exchange& sums = passes.team.sync();
        u64 total = passes.total(sums);
        u32 token = 0;
        if (draws() && total > 0) {
            auto weight = [&](u32 token) {
                u32 adjust = row.adjust_of(token);
                bool left_out = adjust == kNoAdjust && row.is_listed_only();
                return left_out ? 0 : weigh(token, row.value(true, token), adjust);
            };
            token = passes.find_by(sums, draw_point(row.job.uniform, total), weight);
        }
        if (!passes.team.leads() || threadIdx.x != 0) return;
        u32 status = token < row.job.vocab_size ? kOk : kBroken;
        result = RowResult{total, row.job.last_key, 0, status, token, 0.0f, row.job.max, 0, 0};
    }

  private:
    __device__ bool draws() const { return (row.job.flags & (kEntropy | kDrafted)) == 0; }

    // The thread's share of a chunk.
    __device__ u64 weigh_chunk(u32 chunk) const {
        u64 sum = 0;
        if (!row.is_listed_only()) {
            row.each_untouched(chunk, [&](u32 token, float x) { sum += weigh(token, x, kNoAdjust); });
        }
        row.each_touched(chunk, [&](u32 token, float, float x) { sum += weigh(token, x, row.adjust_of(token)); });
        return sum;
    }

    __device__ u64 weigh(u32 token, float x, u32 adjust) const {
        const RowJob& job = row.job;
        if (key_of(token, x) > job.last_key) return 0;
        float y = exponent(x, job.max, job.scale);
        u64 weight = mass_of_exponent(y);
        if (weight < job.min_p_need) return 0;
        if (job.flags & kEntropy) return weight > 0 ? count((double)weight * (double)-y) : 0;
        const DraftRow* drafts = reinterpret_cast<const DraftRow*>(inputs + job.drafts);
#pragma unroll 1
        for (u32 i = 0; i < job.draft_count && weight > 0; ++i) {
            const DraftRow& draft = drafts[i];
            u64 drafted = adjust == kNoAdjust ? drafted_mass(draft, inputs, token)
                                              : reinterpret_cast<const u64*>(inputs + draft.masses)[adjust];
            if (job.flags & kDrafted) return drafted;
            double beyond = (double)weight * draft.of_target - (double)drafted * draft.of_draft;
            weight = count(beyond > 0.0 ? beyond : 0.0);
        }
        return weight;
    }
};
