// What verification needs of a target row whose distribution is known:
//   - the mass that the row has beyond the distributions that draft tokens were drawn from, and a token drawn from that
//   - the row's entropy
//   - the masses that a draft gives to the tokens that the row's filters leave
// It takes one pass, and one chunk in token order if a token is drawn. The host walks along the draft
// (src/backend/cuda/verify/mod.rs), by the rules of src/speculative. A token is touched if it has an adjust (row.cuh).
#pragma once
#include "find.cuh"

__device__ inline float value_of(const u8* row, u32 format, u32 token) {
    if (format == kRowF32) return reinterpret_cast<const float*>(row)[token];
    u32 half = reinterpret_cast<const u16*>(row)[token];
    return format == kRowF16 ? F16::widen(half, 0) : Bf16::widen(half, 0);
}

// Four values as they are in memory: 32 bits each, or 16 bits each in `low`.
struct Four {
    u64 low, high;
};

// The values of the four tokens from `token` on, in one load. `token` is a multiple of four. Rows may be read up to a multiple of
// 16 bytes.
__device__ inline Four four_of(const u8* row, u32 format, u32 token) {
    if (format != kRowF32) return Four{reinterpret_cast<const u64*>(row)[token / 4], 0};
    uint4 words = reinterpret_cast<const uint4*>(row)[token / 4];
    return Four{(u64)words.y << 32 | words.x, (u64)words.w << 32 | words.z};
}

// Where a row is cut: tokens with a larger logit stay, and those with this logit up to an id. Minus infinity is beyond every cut.
struct Cut {
    float logit, above;  // `above` is the next float
    u32 token;
    __device__ explicit Cut(u64 last_key) {
        if (last_key > kLastKey) last_key = kLastKey;
        logit = logit_of(last_key);
        above = from_ascending(~(u32)(last_key >> 32) + 1);
        token = token_of(last_key);
    }
    // The least logit of tokens that stay, for the four from `first` on, if the cut is not among them.
    __device__ float bound(u32 first) const { return first <= token ? logit : above; }
    __device__ bool is_among(u32 first) const { return token - first < 3; }
    __device__ bool keeps(u32 of, float x) const { return (x > logit) | ((x == logit) & (of <= token)); }
    __device__ bool keeps_all() const { return logit == logit_of(kLastKey) && token == token_of(kLastKey); }
};

// A thread takes tokens in lots of two fours, each of which is four consecutive tokens.
constexpr u32 kFours = 2, kLot = 4 * kFours;

// Masses of a lot's tokens, from logits that are minus infinity for tokens without mass. If no lane has a likely token, they are
// computed in fewer instructions.
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

// The mass that a draft token's distribution gives to a token without an adjust.
__device__ inline u64 drafted_mass(const DraftRow& draft, const u8* inputs, u32 token) {
    if (draft.format == kNoRow || token >= draft.vocab_size) return 0;
    float x = value_of(inputs + draft.row, draft.format & 3, token);
    if (draft.format & kSent) return sent_mass(x);
    if (key_of(token, x) > draft.last_key) return 0;
    u64 mass = mass_of_exponent(exponent(x, draft.max, draft.scale));
    return mass < draft.need ? 0 : mass;
}

// `token`, but at most the first of the row's last four: the last multiple of four below `vocab_size`.
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
    // The fours of a lot are kApart tokens apart: the fours of a warp's lanes are adjacent.
    static constexpr u32 kApart = 4 * kWarp, kLots = kPerThread / kLot;
    struct Lot {
        Four fours[kFours];
    };
    __device__ u32 first_of(u32 at) const {
        u32 warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
        return at / kLots * kChunk + warp * Row<Element>::kWarpTokens + at % kLots * kFours * kApart + lane * 4;
    }
    __device__ static u32 token_of_lot(u32 first, u32 i) { return first + i / 4 * kApart + i % 4; }

    // Reads a lot of a row. No read is in a branch, since its result would be waited for after the branch. Beyond the row's end it
    // reads the last four again, whose values are not used.
    __device__ static Lot lot_of(const u8* from, u32 format, u32 vocab_size, u32 first) {
        Lot lot;
#pragma unroll
        for (u32 i = 0; i < kFours; ++i) lot.fours[i] = four_of(from, format, last_four(first + i * kApart, vocab_size));
        return lot;
    }
    __device__ Lot target_lot(u32 first) const { return lot_of(target(), Element::kFormat, row.vocab_size, first); }
    // The same of a draft's row, or of the target's if the draft has no row.
    __device__ Lot drafted_lot(const DraftRow& draft, u32 first) const {
        const u8* from = draft.vocab_size > 0 ? inputs + draft.row : target();
        return lot_of(from, draft.format & 3, draft.vocab_size, first);
    }
    __device__ const u8* target() const { return reinterpret_cast<const u8*>(row.vectors()); }

    // Takes one lot at a time, while the next one is being read; after the last one, that is read again.
    __device__ void weigh_untouched() const {
        u32 at = row.first_chunk * kLots, end = row.end_chunk * kLots;
        if (at == end) return;
        Lot target = target_lot(first_of(at)), draft = drafted_lot(first_draft, first_of(at));
        Cut cut(row.job.last_key);
        // A token belongs to the same warp here as in sample_rows.
        u32 touching = __reduce_or_sync(kAllLanes, row.touching());
        u64 sum = 0;
#pragma unroll 1
        for (; at < end; ++at) {
            float x[kLot], drafted[kLot];
            widen_lot_of<Element>(target, x);
            widen_lot(draft, first_draft.format & 3, drafted);
            // After this, the registers of what was read are free for the next reads.
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

    // The mass that the row's filters leave to a token.
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
        // Tests the sign, which is one comparison of a word.
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

    // The masses that a draft gives to a lot's tokens, from the values of its row.
    __device__ void drafted_masses(const DraftRow& draft, u32 first, float (&x)[kLot], u64 (&to)[kLot]) const {
        u32 format = draft.format, vocab_size = draft.vocab_size;
        // What follows the row in memory may be anything.
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

    // One branch for all values, since a row has one format.
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

    // Replaces the logits of tokens that a cut removes by minus infinity.
    __device__ static void cut_lot(const Cut& cut, u32 first, float (&x)[kLot]) {
        if (cut.keeps_all()) return;
        bool is_among = false;
#pragma unroll
        for (u32 i = 0; i < kLot; i += 4) is_among |= cut.is_among(token_of_lot(first, i));
        // This happens for at most one lot of a row.
        if (is_among) {
#pragma unroll
            for (u32 i = 0; i < kLot; ++i) x[i] = cut.keeps(token_of_lot(first, i), x[i]) ? x[i] : minus_infinity();
        }
#pragma unroll
        for (u32 i = 0; i < kLot; ++i) x[i] = x[i] >= cut.bound(token_of_lot(first, i / 4 * 4)) ? x[i] : minus_infinity();
    }

    // Subtracts a draft from what is left of a lot's tokens; with kDrafted, gives the draft's masses of tokens that have any weight
    // left.
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

    // The sum of what `weigh` gives for those tokens of a lot that have no adjust. All lanes of a warp call it.
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
