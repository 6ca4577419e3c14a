// What verification needs of a target row whose distribution is known: how much the row has beyond the distributions that
// draft tokens were drawn from, and a token drawn from that; its entropy; what a draft gives to the tokens that it leaves.
// One pass, and where a token is drawn one chunk in token order. The walk along a draft is the host's
// (src/backend/cuda/verify/mod.rs), with the rules of src/speculative.
#pragma once
#include "find.cuh"

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

// Where a row is cut: tokens of a larger logit stay, and of this one those up to an id. Minus infinity lies behind every cut.
struct Cut {
    float logit, above;  // and the next float
    u32 token;
    __device__ explicit Cut(u64 last_key) {
        if (last_key > kLastKey) last_key = kLastKey;
        logit = logit_of(last_key);
        above = from_ascending(~(u32)(last_key >> 32) + 1);
        token = token_of(last_key);
    }
    // What four tokens, from this one on, have at least that stay, if the cut is not among them.
    __device__ float bound(u32 first) const { return first <= token ? logit : above; }
    __device__ bool is_among(u32 first) const { return token - first < 3; }
    __device__ bool keeps(u32 of, float x) const { return (x > logit) | ((x == logit) & (of <= token)); }
    __device__ bool keeps_all() const { return logit == logit_of(kLastKey) && token == token_of(kLastKey); }
};

// A thread takes tokens in lots of two fours.
constexpr u32 kFours = 2, kLot = 4 * kFours;

// Masses of a lot's tokens, minus infinity where one has none. If no lane has a likely one, they are worked out in fewer instructions.
__device__ inline void masses_of_lot(const float (&x)[kLot], float max, float scale, u64 need, u64 (&to)[kLot]) {
    float y[kLot], most = minus_infinity();
#pragma unroll
    for (u32 i = 0; i < kLot; ++i) {
        y[i] = exponent(x[i], max, scale);
        most = fmaxf(most, y[i]);
    }
    if (__any_sync(kAllLanes, !(most < kFar))) {
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) to[i] = mass_of_exponent(y[i]);
    } else {
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) to[i] = mass_of_far_exponent(y[i]);
    }
    if (need == 0) return;
#pragma unroll
    for (u32 i = 0; i < kLot; ++i) to[i] = to[i] >= need ? to[i] : 0;
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
        u64 total = passes.total_of_chunks();
        u32 token = 0;
        if (draws() && total > 0) {
            auto weight = [&](u32 token, float x, bool touched) -> u64 {
                if (!touched) return row.is_listed_only() ? 0 : weigh(token, x, kNoAdjust);
                return weigh(token, row.value(true, token), row.adjust_of(token));
            };
            token = Finding<Element>{passes}.find_by(draw_point(row.job.uniform, total), weight);
        }
        if (!passes.team.leads() || threadIdx.x != 0) return;
        u32 status = token < row.job.vocab_size ? kOk : kBroken;
        result = RowResult{total, row.job.last_key, 0, status, token, 0.0f, row.job.max, 0, 0};
    }

  private:
    // A lot's fours, which are so many tokens apart: a warp's fours follow each other.
    static constexpr u32 kApart = 4 * kWarp, kLots = kPerThread / kLot;
    struct Lot {
        Four fours[kFours];
    };
    __device__ u32 first_of(u32 at) const {
        u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
        return at / kLots * kChunk + warp * Row<Element>::kWarpTokens + at % kLots * kFours * kApart + lane * 4;
    }
    __device__ static u32 token_of_lot(u32 first, u32 i) { return first + i / 4 * kApart + i % 4; }

    // What stands at a lot's places in a row: reads that stand in no branch, since behind one what comes of it would be waited for.
    // Beyond a row's end they take its last four again, at which nobody looks.
    __device__ static Lot lot_of(const u8* from, u32 format, u32 vocab_size, u32 first) {
        Lot lot;
#pragma unroll
        for (u32 i = 0; i < kFours; ++i) lot.fours[i] = four_of(from, format, last_four(first + i * kApart, vocab_size));
        return lot;
    }
    __device__ Lot target_lot(u32 first) const { return lot_of(target(), Element::kFormat, row.vocab_size, first); }
    // ... in a draft's, and the target's where there is no draft row.
    __device__ Lot drafted_lot(const DraftRow& draft, u32 first) const {
        const u8* from = draft.vocab_size > 0 ? inputs + draft.row : target();
        return lot_of(from, draft.format & 3, draft.vocab_size, first);
    }
    __device__ const u8* target() const { return reinterpret_cast<const u8*>(row.vectors()); }

    // A lot at a time, while the next one is on its way: behind the last one the same again.
    __device__ void weigh_untouched() const {
        u32 at = row.first_chunk * kLots, end = row.end_chunk * kLots;
        if (at == end) return;
        Lot target = target_lot(first_of(at)), draft = drafted_lot(first_draft, first_of(at));
        Cut cut(row.job.last_key);
        // A token is one of the same warp's here as where rows are sampled.
        u32 touching = __reduce_or_sync(kAllLanes, row.touching());
        u64 sum = 0;
#pragma unroll 1
        for (; at < end; ++at) {
            float x[kLot], drafted[kLot];
            widen_lot_of<Element>(target, x);
            widen_lot(draft, first_draft.format & 3, drafted);
            // Behind this their registers are free, so that what is read next has its place at once.
            are_taken(x, drafted);
            u32 next = first_of(at + 1 < end ? at + 1 : at);
            target = target_lot(next);
            draft = drafted_lot(first_draft, next);
            bool has_touched = touching >> (at / kLots - row.first_chunk) & 1;
            sum += weigh_lot(first_of(at), has_touched, x, drafted, cut);
            if (at % kLots + 1 < kLots) continue;
            sum = warp_sum(sum);
            if (threadIdx.x % kWarp == 0) passes.set_part(at / kLots, threadIdx.x / kWarp, sum);
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
        double beyond = real(weight) * of_target - real(drafted) * of_draft;
        // By its sign: one comparison of a word.
        return __double_as_longlong(beyond) < 0 ? 0 : count(beyond);
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

    // The masses that a draft gives to a lot's tokens, from what stands there.
    __device__ void drafted_masses(const DraftRow& draft, u32 first, float (&x)[kLot], u64 (&to)[kLot]) const {
        u32 format = draft.format, vocab_size = draft.vocab_size;
        // What lies behind the row may be anything.
        if (format == kNoRow || token_of_lot(first, kLot - 1) >= vocab_size) {
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) x[i] = format != kNoRow && token_of_lot(first, i) < vocab_size ? x[i] : minus_infinity();
        }
        if (format & kSent) {
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) to[i] = has_chance(x[i]) ? sent_mass(x[i]) : 0;
            return;
        }
        cut_lot(Cut(draft.last_key), first, x);
        masses_of_lot(x, draft.max, draft.scale, draft.need, to);
    }

    // One branch for all: a format is a row's.
    __device__ static void widen_lot(const Lot& lot, u32 format, float (&x)[kLot]) {
        if (format == kRowF32) widen_lot_of<F32>(lot, x);
        else if (format == kRowF16) widen_lot_of<F16>(lot, x);
        else widen_lot_of<Bf16>(lot, x);
    }
    template <class Format>
    __device__ static void widen_lot_of(const Lot& lot, float (&x)[kLot]) {
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) {
            const Four& four = lot.fours[i / 4];
            u32 at = i % 4 / (Format::kPerVector / 4), word = (u32)((at < 2 ? four.low : four.high) >> (32 * (at % 2)));
            x[i] = Format::widen(word, i % (Format::kPerVector / 4));
        }
    }

    __device__ static void are_taken([[maybe_unused]] float (&x)[kLot], [[maybe_unused]] float (&drafted)[kLot]) {
#ifndef CROUPIER_EMULATOR
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) asm volatile("mov.b32 %0, %0;\n\tmov.b32 %1, %1;" : "+f"(x[i]), "+f"(drafted[i]));
#endif
    }

    // Minus infinity for what a cut takes away.
    __device__ static void cut_lot(const Cut& cut, u32 first, float (&x)[kLot]) {
        if (cut.keeps_all()) return;
        bool is_among = false;
#pragma unroll
        for (u32 i = 0; i < kLot; i += 4) is_among |= cut.is_among(token_of_lot(first, i));
        // One lot of a row at most.
        if (is_among) {
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) x[i] = cut.keeps(token_of_lot(first, i), x[i]) ? x[i] : minus_infinity();
        }
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) x[i] = x[i] >= cut.bound(token_of_lot(first, i / 4 * 4)) ? x[i] : minus_infinity();
    }

    // Takes a draft from what is left of a lot's tokens, or says what it gives to those of which anything is.
    __device__ void take(const DraftRow& draft, u32 first, float (&x)[kLot], u64 (&weight)[kLot]) const {
        u64 drafted[kLot];
        drafted_masses(draft, first, x, drafted);
        double of_target = draft.of_target, of_draft = draft.of_draft;
        if (row.job.flags & kDrafted) {
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) weight[i] = weight[i] > 0 ? drafted[i] : 0;
        } else {
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) weight[i] = beyond(weight[i], drafted[i], of_target, of_draft);
        }
    }

    // The same of a lot's tokens that have no adjust: their sum. All lanes of a warp.
    __device__ u64 weigh_lot(u32 first, bool has_touched, float (&x)[kLot], float (&drafted)[kLot], const Cut& cut) const {
        u64 weight[kLot], sum = 0;
        if (has_touched || token_of_lot(first, kLot - 1) >= row.vocab_size) {
            u32 which = 0;
#pragma unroll
            for (u32 i = 0; i < kFours; ++i) which |= row.which_of_four(first + i * kApart) << (4 * i);
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) x[i] = which >> i & 1 ? x[i] : minus_infinity();
        }
        cut_lot(cut, first, x);
        float most = minus_infinity();
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) most = fmaxf(most, x[i]);
        if (!__any_sync(kAllLanes, has_chance(most))) return 0;
        masses_of_lot(x, row.job.max, row.job.scale, row.job.min_p_need, weight);
        if (row.job.flags & kEntropy) {
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) sum += entropy_term(weight[i], x[i]);
            return sum;
        }
        if (row.job.draft_count > 0) take(first_draft, first, drafted, weight);
#pragma unroll 1
        for (u32 d = 1; d < row.job.draft_count; ++d) {
            widen_lot(drafted_lot(draft(d), first), draft(d).format & 3, drafted);
            take(draft(d), first, drafted, weight);
        }
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) sum += weight[i];
        return sum;
    }
};
