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

// The values of four tokens in one load; the first is a multiple of four. Rows may be read to a multiple of 16 bytes.
__device__ inline void values_of(const u8* row, u32 format, u32 token, float (&to)[4]) {
    if (format == kRowF32) {
        uint4 words = reinterpret_cast<const uint4*>(row)[token / 4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) to[i] = F32::widen(word_of(words, i), 0);
        return;
    }
    u64 halves = reinterpret_cast<const u64*>(row)[token / 4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 half = (u32)(halves >> (16 * i)) & 0xFFFFu;
        to[i] = format == kRowF16 ? F16::widen(half, 0) : Bf16::widen(half, 0);
    }
}

// The mass that a draft token's distribution gives to a token with this value in its row.
__device__ inline u64 drafted_by(const DraftRow& draft, u32 token, float x) {
    // ceil(x * 2^40): the product is exact.
    if (draft.format & kSent) return (u64)ceilf(x * 1099511627776.0f);
    if (key_of(token, x) > draft.last_key) return 0;
    u64 mass = mass_of_exponent(exponent(x, draft.max, draft.scale));
    return mass < draft.need ? 0 : mass;
}

// ... to a token of which there is no adjust.
__device__ inline u64 drafted_mass(const DraftRow& draft, const u8* inputs, u32 token) {
    if (draft.format == kNoRow || token >= draft.vocab_size) return 0;
    return drafted_by(draft, token, value_of(inputs + draft.row, draft.format & 3, token));
}

template <class Element>
struct Weigher {
    const Passes<Element>& passes;
    const Row<Element>& row;
    const u8* inputs;

    __device__ void run(RowResult& result) const {
        // Nobody of the row before needs the adjusts' bitmap any more: `find_by` ends with a barrier.
        const Histogram bins = passes.team.sums();
        bins.clear(row.share);
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk && !row.is_listed_only(); ++chunk) {
            u64 sum = 0;
            row.each_four(chunk, [&](u32 token, const float (&x)[4], u32 which) { sum += weigh_four(token, x, which); });
            sum = warp_sum(sum);
            if (threadIdx.x % kWarp == 0) bins.add(chunk - row.first_chunk, sum);
        }
        row.each_touched([&](const Touched& touched) {
            u64 own = weigh(touched.token, touched.x, row.adjust_of(touched.token));
            bins.add(touched.token / kChunk - row.first_chunk, own);
        });
        passes.team.sync(row.share);
        u64 total = passes.total();
        u32 token = 0;
        if (draws() && total > 0) {
            auto weight = [&](u32 token, float x, bool touched) -> u64 {
                if (!touched) return row.is_listed_only() ? 0 : weigh(token, x, kNoAdjust);
                return weigh(token, row.value(true, token), row.adjust_of(token));
            };
            token = passes.template find_by<1>(draw_point(row.job.uniform, total), weight);
        }
        if (!passes.team.leads() || threadIdx.x != 0) return;
        u32 status = token < row.job.vocab_size ? kOk : kBroken;
        result = RowResult{total, row.job.last_key, 0, status, token, 0.0f, row.job.max, 0, 0};
    }

  private:
    __device__ bool draws() const { return (row.job.flags & (kEntropy | kDrafted)) == 0; }

    __device__ const DraftRow& draft(u32 i) const {
        return reinterpret_cast<const DraftRow*>(inputs + row.job.drafts)[i];
    }

    // What the row leaves of a token.
    __device__ u64 left(u32 token, float x) const {
        if (key_of(token, x) > row.job.last_key) return 0;
        u64 weight = mass_of_exponent(exponent(x, row.job.max, row.job.scale));
        return weight < row.job.min_p_need ? 0 : weight;
    }

    __device__ u64 entropy_term(u64 weight, float x) const {
        return weight > 0 ? count((double)weight * (double)-exponent(x, row.job.max, row.job.scale)) : 0;
    }

    __device__ static u64 beyond(u64 weight, u64 drafted, const DraftRow& draft) {
        double beyond = (double)weight * draft.of_target - (double)drafted * draft.of_draft;
        return count(beyond > 0.0 ? beyond : 0.0);
    }

    __device__ u64 weigh(u32 token, float x, u32 adjust) const {
        u64 weight = left(token, x);
        if (row.job.flags & kEntropy) return entropy_term(weight, x);
#pragma unroll 1
        for (u32 i = 0; i < row.job.draft_count && weight > 0; ++i) {
            u64 drafted = adjust == kNoAdjust ? drafted_mass(draft(i), inputs, token)
                                              : reinterpret_cast<const u64*>(inputs + draft(i).masses)[adjust];
            if (row.job.flags & kDrafted) return drafted;
            weight = beyond(weight, drafted, draft(i));
        }
        return weight;
    }

    // The same of tokens that have no adjust, the sum of those of the four that are meant.
    __device__ u64 weigh_four(u32 first, const float (&x)[4], u32 which) const {
        u64 weight[4], any = 0, sum = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            weight[i] = which >> i & 1 ? left(first + i, x[i]) : 0;
            any |= weight[i];
        }
        if (row.job.flags & kEntropy) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sum += entropy_term(weight[i], x[i]);
            return sum;
        }
#pragma unroll 1
        for (u32 d = 0; d < row.job.draft_count && any > 0; ++d) {
            any = 0;
            float proposed[4] = {};
            bool has_row = draft(d).format != kNoRow && first < draft(d).vocab_size;
            if (has_row) values_of(inputs + draft(d).row, draft(d).format & 3, first, proposed);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                bool is_one = has_row && first + i < draft(d).vocab_size;
                u64 drafted = is_one ? drafted_by(draft(d), first + i, proposed[i]) : 0;
                u64 next = row.job.flags & kDrafted ? drafted : beyond(weight[i], drafted, draft(d));
                weight[i] = weight[i] > 0 ? next : 0;
                any |= weight[i];
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sum += weight[i];
        return sum;
    }
};
