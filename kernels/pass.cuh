// One pass over a row: every token in a range of the order is weighed, and the weights go into bins, into sums by chunk, or
// the tokens into a list. All that is done with a row after the first look is made of such passes, and of finding a token
// in one chunk.
#pragma once
#include "list.cuh"
#include "row.cuh"

template <class Element>
struct Passes {
    const ListMemory& memory;
    const Row<Element>& row;
    Team& team;

    // Runs a pass over the slice and ends the phase. There are four loops, so that each has only the work of its kind in it.
    __device__ void run(const Pass& pass) const {
        bool sums = pass.sink == kToChunks || pass.sink == kToTotal;
        u32 sums_used = sums ? row.share : pass.sink == kToBins ? kBins : 0;
        u32 from = pass.binning == kFromOrigin ? pass.origin : 0;
        team.sums().clear(sums_used);
        if (!sums) take_untouched(pass);
        else if (pass.weighs_all()) sum_masses(pass);
        else if (pass.only_counts()) {
            sum_chunks(pass, [&](u32 token, float x) { return (u64)(pass.has(token, x) && token >= from); });
        } else sum_chunks(pass, [&](u32 token, float x) { return pass.weight(token, x); });
        if (!sees_all(pass)) {
            row.each_touched([&](const Touched& touched, u32) {
                float x = pass.adjusted ? touched.x : touched.raw;
                if (pass.has(touched.token, x) && touched.token >= from) take(pass, touched.token, x);
            });
        }
        team.sync(sums_used);
    }

    // Weighs delegates instead of tokens, by their mass or each as 1, in bins by distance from the largest logit.
    __device__ void weigh_delegates(const Pass& pass, bool by_mass) const {
        team.sums().clear(kBins);
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            float x = row.delegate(chunk);
            if (!sees_untouched(pass) || !has_chance(x)) continue;
            u32 bin = distance_bin(pass.max, x);
            u64 own = by_mass ? pass.mass(x) : 0;
            if (own > 0) team.sums().add(bin, own);
            if (!by_mass) team.sums().add_one(bin);
        }
        team.sync(kBins);
    }

    // After a pass into chunks: what it weighed in one of them. After one into the total, too: in all.
    __device__ u64 chunk_sum(u32 chunk) const { return team.sum_of(chunk / row.share, chunk % row.share); }
    __device__ u64 total() const {
        u64 own = 0;
#pragma unroll 1
        for (u32 chunk = threadIdx.x % kWarp; chunk < row.chunks(); chunk += kWarp) own += chunk_sum(chunk);
        return warp_sum(own);
    }

    // After a pass into chunks: the first token, by ascending id, at which the running weight exceeds `point`. A number
    // beyond the vocabulary if there is none, which is a bug.
    __device__ u32 find(const Pass& pass, u64 point) const {
        bool leaves_out = pass.adjusted && row.is_listed_only();
        return find_by<4>(point, [&](u32 token, float x, bool touched) {
            if (touched) return pass.weight(token, row.value(pass.adjusted, token));
            return leaves_out ? 0 : pass.weight(token, x);
        });
    }

    // The same by weight(token, logit as sent, whether it is touched), of so many tokens side by side.
    template <u32 kAtOnce, class Weight>
    __device__ u32 find_by(u64 point, Weight weight) const {
        Place chunk = warp_locate(row.chunks(), point, [&](u32 c) { return chunk_sum(c); });
        if (row.owns(chunk.index)) find_in<kAtOnce>(chunk.index, point - chunk.before, weight);
        team.sync(0);
        return team.found();
    }

    // After a pass into the list: brings it into each block, in order, and gives its length; kListed + 1 if it did not fit.
    __device__ u32 order_list() const {
        u32 listed = team.gather(memory.masses);
        if (listed > kListed) return kListed + 1;
        memory.put_in_order(listed);
        return listed;
    }

  private:
    __device__ bool sees_untouched(const Pass& pass) const { return !pass.adjusted || !row.is_listed_only(); }

    // Every token weighs its mass by the logit as sent, touched or not: nothing is hidden, and nothing comes after.
    __device__ bool sees_all(const Pass& pass) const {
        return !pass.adjusted && pass.weighs_all() && pass.sink != kToList && pass.sink != kToBins;
    }

    // Whether the thread has to look at its untouched tokens of a chunk: not if its largest one lies beyond the range, or has
    // too little mass.
    __device__ bool looks(const Pass& pass, u32 chunk) const {
        float most = row.delegate(chunk);
        if (!sees_untouched(pass) || descending(most) > (u32)(pass.last_key >> 32)) return false;
        return pass.need == 0 || !masses_are_below(exponent(most, pass.max, pass.scale), pass.need);
    }

    // Masses of all tokens. A warp that has none of the likely ones, as most have, works out its own in fewer instructions.
    __device__ void sum_masses(const Pass& pass) const {
        if (!sees_untouched(pass)) return;
        bool has_all = sees_all(pass) && row.has_touched();
        u64 sum = 0;
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            float x[kPerThread];
            row.load_logits(chunk, x);
            if (!sees_all(pass)) row.hide_touched(chunk, x);
            // The delegate is of untouched tokens.
            float most = has_all ? largest(x) : row.delegate(chunk);
            if (__any_sync(kAllLanes, !(exponent(most, pass.max, pass.scale) < kFar))) {
#pragma unroll
                for (u32 k = 0; k < kPerThread; ++k) sum += pass.mass(x[k]);
            } else {
                u32 small = 0;
#pragma unroll
                for (u32 k = 0; k < kPerThread; ++k) small += mass_of_far_exponent(exponent(x[k], pass.max, pass.scale));
                sum += small;
            }
            add_sum(pass, chunk, sum);
        }
    }

    template <class Weight>
    __device__ void sum_chunks(const Pass& pass, Weight weight) const {
        u64 sum = 0;
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            if (looks(pass, chunk)) {
                float x[kPerThread];
                row.load_untouched(chunk, x);
#pragma unroll
                for (u32 k = 0; k < kPerThread; ++k) sum += weight(row.token_at(chunk, k), x[k]);
            }
            add_sum(pass, chunk, sum);
        }
    }

    // Each lane's sum up to the end of a chunk, to where sums go; what has gone there is taken from it. 256 masses have 48 bits.
    __device__ void add_sum(const Pass& pass, u32 chunk, u64& sum) const {
        if (pass.sink == kToTotal && chunk + 1 < row.end_chunk) return;
        u64 of_warp = warp_sum(sum);
        if (threadIdx.x % kWarp == 0) team.sums().add(chunk - row.first_chunk, of_warp);
        sum = 0;
    }

    // Untouched tokens in the range, one by one: few are, once a search has narrowed, and only they are weighed.
    __device__ void take_untouched(const Pass& pass) const {
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            if (!looks(pass, chunk)) continue;
            float x[kPerThread];
            row.load_untouched(chunk, x);
            u32 which = 0;
#pragma unroll
            for (u32 k = 0; k < kPerThread; ++k) which |= (u32)pass.has(row.token_at(chunk, k), x[k]) << k;
#pragma unroll 1
            for (; which != 0; which &= which - 1) {
                u32 k = __ffs(which) - 1;
                take(pass, row.token_at(chunk, k), row.logit_at(chunk, k));
            }
        }
    }

    // One token of the range, to wherever the pass goes.
    __device__ void take(const Pass& pass, u32 token, float x) const {
        u64 own = pass.weight(token, x);
        if (own == 0) return;
        if (pass.sink == kToList) return team.append(key_of(token, x));
        u32 bin = pass.sink == kToBins ? pass.bin_of(x) : token / kChunk - row.first_chunk;
        if (pass.counts) team.sums().add_one(bin);
        else team.sums().add(bin, own);
    }

    // In one chunk: sums by vector, then by warp and vector, which stand in the order of tokens.
    template <u32 kAtOnce, class Weight>
    __device__ void find_in(u32 chunk, u64 point, Weight weight) const {
        constexpr u32 kVectors = Row<Element>::kVectors;
        u32 warp = threadIdx.x / kWarp;
        // Nobody has looked at the masses since the barrier that ended the pass.
#pragma unroll 1
        for (u32 j = 0; j < kVectors; ++j) {
            u64 of_warp = warp_sum(vector_sum<kAtOnce>(chunk, j, weight));
            if (threadIdx.x % kWarp == 0) memory.masses[j * kWarps + warp] = of_warp;
        }
        __syncthreads();
        Place part = warp_locate(kVectors * kWarps, point, [&](u32 i) { return memory.masses[i]; });
        u32 j = part.index / kWarps;
        if (j == kVectors || part.index % kWarps != warp) return;
        u64 own = vector_sum<1>(chunk, j, weight), before = part.before + warp_scan(own) - own;
        if (point < before || point >= before + own) return;
        uint4 vector = row.load_one(chunk, j);
        u32 i = 0;
#pragma unroll 1
        for (u64 next = before; (next += vector_weight(chunk, j, vector, i, weight)) <= point;) ++i;
        team.bring_found(row.token_at(chunk, j * Element::kPerVector + i));
    }

    template <u32 kAtOnce, class Weight>
    __device__ u64 vector_sum(u32 chunk, u32 j, Weight weight) const {
        uint4 vector = row.load_one(chunk, j);
        u32 first = row.token_at(chunk, j * Element::kPerVector), touched = row.touched_in(chunk, j);
        u64 sum = 0;
#pragma unroll kAtOnce
        for (u32 i = 0; i < Element::kPerVector; ++i) {
            bool is_one = first + i < row.vocab_size && (touched >> i & 1) == 0;
            sum += is_one ? weight(first + i, element<Element>(vector, i), false) : 0;
        }
#pragma unroll 1
        for (; touched != 0; touched &= touched - 1) {
            u32 i = __ffs(touched) - 1;
            sum += weight(first + i, element<Element>(vector, i), true);
        }
        return sum;
    }

    // Of the i-th token of the thread's j-th vector.
    template <class Weight>
    __device__ u64 vector_weight(u32 chunk, u32 j, const uint4& vector, u32 i, Weight weight) const {
        u32 token = row.token_at(chunk, j * Element::kPerVector + i);
        bool touched = row.touched_in(chunk, j) >> i & 1;
        return token < row.vocab_size ? weight(token, element<Element>(vector, i), touched) : 0;
    }
};
