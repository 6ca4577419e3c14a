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

// Four values as they stand in memory: words, or halves in the first of both.
struct Four {
    u64 low, high;
};

// Those of four tokens in one load; the first is a multiple of four. Rows may be read to a multiple of 16 bytes.
__device__ inline Four four_of(const u8* row, u32 format, u32 token) {
    if (format != kRowF32) return Four{reinterpret_cast<const u64*>(row)[token / 4], 0};
    uint4 words = reinterpret_cast<const uint4*>(row)[token / 4];
    return Four{(u64)words.y << 32 | words.x, (u64)words.w << 32 | words.z};
}

__device__ inline void widen_four(const Four& four, u32 format, float (&to)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 word = (u32)((i < 2 ? four.low : four.high) >> (32 * (i % 2))), half = (u32)(four.low >> (16 * i)) & 0xFFFFu;
        to[i] = format == kRowF32 ? F32::widen(word, 0) : format == kRowF16 ? F16::widen(half, 0) : Bf16::widen(half, 0);
    }
}

// ceil(x * 2^40): the product is exact.
__device__ inline u64 sent_mass(float x) { return (u64)ceilf(x * 1099511627776.0f); }

// The mass that a draft token's distribution gives to a token of which there is no adjust.
__device__ inline u64 drafted_mass(const DraftRow& draft, const u8* inputs, u32 token) {
    if (draft.format == kNoRow || token >= draft.vocab_size) return 0;
    float x = value_of(inputs + draft.row, draft.format & 3, token);
    if (draft.format & kSent) return sent_mass(x);
    if (key_of(token, x) > draft.last_key) return 0;
    u64 mass = mass_of_exponent(exponent(x, draft.max, draft.scale));
    return mass < draft.need ? 0 : mass;
}

__device__ inline Four drafted_four(const DraftRow& draft, const u8* inputs, u32 first) {
    if (draft.format == kNoRow || first >= draft.vocab_size) return Four{0, 0};
    return four_of(inputs + draft.row, draft.format & 3, first);
}

// ... to four of them, of which the first is a multiple of four, from what stands there. What is the same for all is read once.
__device__ inline void drafted_masses(const DraftRow& draft, u32 first, const Four& values, u64 (&to)[4]) {
    u32 format = draft.format, vocab_size = draft.vocab_size;
    if (format == kNoRow || first >= vocab_size) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) to[i] = 0;
        return;
    }
    float x[4];
    widen_four(values, format & 3, x);
    if (format & kSent) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) to[i] = first + i < vocab_size ? sent_mass(x[i]) : 0;
        return;
    }
    u64 last_key = draft.last_key, need = draft.need;
    float max = draft.max, scale = draft.scale;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        // What lies behind the row may be anything.
        float own = first + i < vocab_size ? x[i] : minus_infinity();
        u64 mass = mass_of_exponent(exponent(own, max, scale));
        to[i] = key_of(first + i, own) <= last_key && mass >= need ? mass : 0;
    }
}

template <class Element>
struct Weigher {
    const Passes<Element>& passes;
    const Row<Element>& row;
    const u8* inputs;

    __device__ void run(RowResult& result) const {
        if (row.is_listed_only()) passes.clear_parts();
        else weigh_untouched();
        passes.await_parts();
        row.each_touched([&](const Touched& touched, u32 adjust) {
            passes.add_token(touched.token, weigh(touched.token, touched.x, adjust));
        });
        passes.sum_parts();
        passes.team.sync(row.share);
        u64 total = passes.total();
        u32 token = 0;
        if (draws() && total > 0) {
            auto weight = [&](u32 token, float x, bool touched) -> u64 {
                if (!touched) return row.is_listed_only() ? 0 : weigh(token, x, kNoAdjust);
                return weigh(token, row.value(true, token), row.adjust_of(token));
            };
            token = passes.find_by(draw_point(row.job.uniform, total), weight);
        }
        if (!passes.team.leads() || threadIdx.x != 0) return;
        u32 status = token < row.job.vocab_size ? kOk : kBroken;
        result = RowResult{total, row.job.last_key, 0, status, token, 0.0f, row.job.max, 0, 0};
    }

  private:
    // What four tokens are weighed by: their logits, and what the first draft has there.
    struct Pair {
        Four target, draft;
    };

    __device__ Pair fetch(u32 chunk, u32 four) const {
        u32 token = row.token_at(chunk, 4 * four);
        if (token >= row.vocab_size) return Pair{};
        Four target = four_of(reinterpret_cast<const u8*>(row.vectors()), Element::kFormat, token);
        return Pair{target, row.job.draft_count > 0 ? drafted_four(draft(0), inputs, token) : Four{0, 0}};
    }

    // Four tokens at a time, while the next four are on their way.
    __device__ void weigh_untouched() const {
        constexpr u32 kFours = kPerThread / 4;
        Pair next{};
        if (row.first_chunk < row.end_chunk) next = fetch(row.first_chunk, 0);
        u64 sum = 0;
#pragma unroll 1
        for (u32 at = row.first_chunk * kFours; at < row.end_chunk * kFours; ++at) {
            u32 chunk = at / kFours, four = at % kFours;
            Pair now = next;
            if (at + 1 < row.end_chunk * kFours) next = fetch((at + 1) / kFours, (at + 1) % kFours);
            sum += weigh_four(row.token_at(chunk, 4 * four), now);
            if (four + 1 < kFours) continue;
            sum = warp_sum(sum);
            if (threadIdx.x % kWarp == 0) passes.set_part(chunk, threadIdx.x / kWarp, sum);
            sum = 0;
        }
    }

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

    __device__ static u64 beyond(u64 weight, u64 drafted, double of_target, double of_draft) {
        double beyond = (double)weight * of_target - (double)drafted * of_draft;
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
            weight = beyond(weight, drafted, draft(i).of_target, draft(i).of_draft);
        }
        return weight;
    }

    // The same of tokens that have no adjust, of which the first is a multiple of four: their sum.
    __device__ u64 weigh_four(u32 first, const Pair& values) const {
        u64 weight[4], any = 0, sum = 0;
        float x[4];
        widen_four(values.target, Element::kFormat, x);
        u32 which = row.which_of_four(first);
        u64 last_key = row.job.last_key, need = row.job.min_p_need;
        float max = row.job.max, scale = row.job.scale;
        // Without a branch, so that the four are worked out side by side. What is not meant has no mass.
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            float logit = which >> i & 1 ? x[i] : minus_infinity();
            u64 own = mass_of_exponent(exponent(logit, max, scale));
            bool is_left = (key_of(first + i, logit) <= last_key) & (own >= need);
            weight[i] = is_left ? own : 0;
            any |= weight[i];
        }
        if (row.job.flags & kEntropy) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sum += entropy_term(weight[i], x[i]);
            return sum;
        }
#pragma unroll 1
        for (u32 d = 0; d < row.job.draft_count && any > 0; ++d) {
            u64 drafted[4];
            drafted_masses(draft(d), first, d == 0 ? values.draft : drafted_four(draft(d), inputs, first), drafted);
            any = 0;
            double of_target = draft(d).of_target, of_draft = draft(d).of_draft;
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                u64 next = row.job.flags & kDrafted ? drafted[i] : beyond(weight[i], drafted[i], of_target, of_draft);
                weight[i] = weight[i] > 0 ? next : 0;
                any |= weight[i];
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sum += weight[i];
        return sum;
    }
};
