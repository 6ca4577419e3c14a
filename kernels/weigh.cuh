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

// The four from `token` on, or the last ones of a row of so many that begin with a multiple of four.
__device__ inline u32 last_four(u32 token, u32 vocab_size) {
    u32 last = vocab_size > 0 ? (vocab_size - 1) / 4 * 4 : 0;
    return token < last ? token : last;
}

template <class Element>
struct Weigher {
    const Passes<Element>& passes;
    const Row<Element>& row;
    const u8* inputs;
    const DraftRow& first_draft;

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
    // The logits of a thread's four tokens, and what the first draft has there: each a read that stands in no branch, since behind one
    // what comes of it would be waited for. Beyond a row's end they take its last four again, and the target's where there is no draft
    // row, at which nobody looks.
    __device__ Four target_four(u32 first) const {
        return four_of(target(), Element::kFormat, last_four(first, row.vocab_size));
    }
    __device__ Four draft_four(u32 first) const {
        const u8* from = first_draft.vocab_size > 0 ? inputs + first_draft.row : target();
        return four_of(from, first_draft.format & 3, last_four(first, first_draft.vocab_size));
    }
    __device__ const u8* target() const { return reinterpret_cast<const u8*>(row.vectors()); }

    // The first of a thread's tokens that are its `at`-th four, counted over chunks.
    static constexpr u32 kFours = kPerThread / 4;
    __device__ u32 token_of_four(u32 at) const { return row.token_at(at / kFours, at % kFours * 4); }

    // Four tokens at a time, while the next four are on their way: behind the last ones the same again.
    __device__ void weigh_untouched() const {
        u32 at = row.first_chunk * kFours, end = row.end_chunk * kFours;
        if (at == end) return;
        Four target = target_four(token_of_four(at)), draft = draft_four(token_of_four(at));
        u64 sum = 0;
#pragma unroll 1
        for (; at < end; ++at) {
            u32 next = token_of_four(at + 1 < end ? at + 1 : at);
            Four drafted = draft;
            draft = draft_four(next);
            sum += weigh_four(token_of_four(at), target, drafted, [&] { target = target_four(next); });
            if (at % kFours + 1 < kFours) continue;
            sum = warp_sum(sum);
            if (threadIdx.x % kWarp == 0) passes.set_part(at / kFours, threadIdx.x / kWarp, sum);
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

    // Takes a draft from what is left of four tokens, or says what it gives to those of which anything is; 0 if nothing is then.
    __device__ u64 take(const DraftRow& draft, const Four& values, u32 first, u64 (&weight)[4]) const {
        u64 drafted[4], any = 0;
        drafted_masses(draft, first, values, drafted);
        double of_target = draft.of_target, of_draft = draft.of_draft;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u64 next = row.job.flags & kDrafted ? drafted[i] : beyond(weight[i], drafted[i], of_target, of_draft);
            weight[i] = weight[i] > 0 ? next : 0;
            any |= weight[i];
        }
        return any;
    }

    // The same of tokens that have no adjust, of which the first is a multiple of four: their sum.
    template <class Then>
    __device__ u64 weigh_four(u32 first, const Four& target, const Four& drafted, Then then) const {
        u64 weight[4], any = 0, sum = 0;
        float x[4];
        widen_four(target, Element::kFormat, x);
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
        then();
        if (row.job.flags & kEntropy) {
            widen_four(target_four(first), Element::kFormat, x);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) sum += entropy_term(weight[i], x[i]);
            return sum;
        }
        if (any > 0 && row.job.draft_count > 0) any = take(first_draft, drafted, first, weight);
#pragma unroll 1
        for (u32 d = 1; d < row.job.draft_count && any > 0; ++d) {
            any = take(draft(d), drafted_four(draft(d), inputs, first), first, weight);
        }
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sum += weight[i];
        return sum;
    }
};
