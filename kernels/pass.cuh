// A pass over a row weighs every token in a range of the order. The weights go into bins or sums, or the tokens into a list.
// Everything that is done with a row after the first look (sample.cu) consists of such passes, and of finding a token in one chunk
// (find.cuh).
//
// Each block passes over its slice, which is the chunks that it works on, with the other blocks of its team. A thread's delegate in
// a chunk is its largest untouched logit there; a token is touched if it has an adjust (row.cuh). A floor is a value that as many
// tokens reach as are wanted.
#pragma once
#include "list.cuh"
#include "row.cuh"

template <class Element>
struct Passes {
    const ListMemory& memory;
    const Row<Element>& row;
    Team& team;

    // Runs a pass over the slice and ends the phase. There are five loops, so that each contains only its own kind of work. With
    // `lists_both`, a pass over the row as sent, into the list and with the total, makes two lists: the first tokens of the
    // adjusted row, and those of the row as sent, each down to its own floor. The range ends at the lower floor.
    __device__ void run(const Pass& pass, bool lists_both) const {
        u32 sums_used = pass.sink == kToChunks ? row.share : pass.sink == kToBins ? kBins : pass.sums() ? 1 : 0;
        u32 from = pass.binning == kFromOrigin ? pass.origin : 0;
        if (pass.sink != kToChunks) team.sums().clear(sums_used);
        else if (!sees_untouched(pass)) clear_parts();
        u32 to_list = 0;
        if (pass.bins_all() || pass.sums_all()) to_list = sum_masses(pass);
        else if (pass.sums()) sum_range(pass, from);
        else if (pass.sink == kToBins) bin_untouched(pass);
        else to_list = chunks_to_list(pass);
        if (pass.sink == kToList) list_untouched(pass, to_list, lists_both);
        if (!sees_all(pass)) {
            if (pass.sink == kToChunks) await_parts();
            row.each_touched([&](const Touched& touched, u32) {
                if (lists_both) return append_touched(touched);
                float x = pass.adjusted ? touched.x : touched.raw;
                if (pass.has(touched.token, x) && touched.token >= from) take(pass, touched.token, x);
            });
        }
        if (pass.sink == kToChunks) sum_parts();
        team.sync(sums_used, lists_both);
    }

    // Counts delegates instead of tokens, in bins by distance from the largest logit. If there are far more threads than tokens are
    // wanted, it counts only the largest delegate of each thread. If these are too few, as in a short row, all tokens are listed.
    __device__ void count_delegates(const Pass& pass, u32 wanted) const {
        team.sums().clear(kBins);
        if (sees_untouched(pass)) {
            bool each = wanted * 4 > kThreads * team.size;
            float most = minus_infinity();
#pragma unroll 1
            for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
                float x = row.delegate(chunk);
                if (each) count_delegate(pass, x);
                most = fmaxf(most, x);
            }
            if (!each) count_delegate(pass, most);
        }
        team.sync(kBins);
    }

    // Finds the floors, as integers in ascending order: values that `wanted` adjusted logits and `raw_wanted` logits as sent reach,
    // since the largest logits of so many groups do. If fewer groups have a token with a chance, all such tokens reach the floor.
    // `group` has the largest logits of one group for each thread: the adjusted one, and in the high half the one as sent; 0 for
    // none.
    __device__ void find_floors(u64 group, float max, u32 wanted, float raw_max, u32 raw_wanted) const {
        Histogram bins = team.sums();
        bins.clear_pairs(kBins);
        float x = from_ascending((u32)group), raw = from_ascending((u32)(group >> 32));
        if (has_chance(x)) bins.add_pair(distance_bin(max, x), 1);
        if (has_chance(raw)) bins.add_pair(distance_bin(raw_max, raw), 1 << 16);
        __syncthreads();
        constexpr u32 kShare = kBins / kThreads;
        u32 own = 0, total;
#pragma unroll
        for (u32 i = 0; i < kShare; ++i) own += bins.pair(threadIdx.x * kShare + i);
        u32 before = memory.block.pairs_before(own, total);
        if (threadIdx.x == 0 && (total & 0xFFFF) < wanted) memory.floors[0] = floor_of_bins(max, kBins - 1);
        if (threadIdx.x == 0 && total >> 16 < raw_wanted) memory.floors[1] = floor_of_bins(raw_max, kBins - 1);
#pragma unroll
        for (u32 i = 0; i < kShare; ++i) {
            u32 bin = threadIdx.x * kShare + i, sum = before + bins.pair(bin);
            if ((before & 0xFFFF) < wanted && wanted <= (sum & 0xFFFF)) memory.floors[0] = floor_of_bins(max, bin);
            if (before >> 16 < raw_wanted && raw_wanted <= sum >> 16) memory.floors[1] = floor_of_bins(raw_max, bin);
            before = sum;
        }
        __syncthreads();
    }
    static_assert(kBins % kThreads == 0 && kThreads < 1 << 16, "each thread has as many bins; a half counts all groups");

    // A floor by what `count_delegates` counted.
    __device__ u32 floor_of_delegates(float max, u32 wanted) const {
        Place place = memory.block.locate(kBins, wanted - 1, [&](u32 bin) -> u64 { return team.count(bin); });
        // A few more tokens than are in these bins do no harm.
        return floor_of_bins(max, place.index < kBins ? place.index : kBins - 1);
    }

    // After a pass into chunks: the sum of one chunk, and of all.
    __device__ u64 chunk_sum(u32 chunk) const { return team.sum_of(chunk / row.share, chunk % row.share); }
    __device__ u64 total_of_chunks() const {
        u64 own = 0;
#pragma unroll 1
        for (u32 chunk = threadIdx.x % kWarp; chunk < row.chunks(); chunk += kWarp) own += chunk_sum(chunk);
        return warp_sum(own);
    }
    // After a pass into the total: the sum over all blocks, of which each lane reads one.
    __device__ u64 total() const { return warp_sum(block_total()); }
    __device__ u64 block_total() const {
        u32 lane = threadIdx.x % kWarp;
        return lane < team.size ? team.sum_of(lane, 0) : 0;
    }

    // The sum of a chunk is made of parts, one for each warp, which other blocks do not read. Only its warp sets a part, so parts
    // need no clearing. If no warp sets them, they are cleared.
    __device__ void set_part(u32 chunk, u32 warp, u64 sum) const { team.sums().set(part_of(chunk - row.first_chunk, warp), sum); }
    __device__ void clear_parts() const { team.sums().clear(part_of(row.share, 0)); }

    // After this, any thread may add to parts what touched tokens weigh.
    __device__ void await_parts() const {
        if (row.has_touched()) __syncthreads();
    }
    __device__ void add_token(u32 token, u64 weight) const {
        u32 chunk = token / kChunk - row.first_chunk;
        team.sums().add(part_of(chunk, token % kChunk / Row<Element>::kWarpTokens), weight);
    }

    // Sums the parts of each chunk of the slice, one warp for each chunk.
    __device__ void sum_parts() const {
        __syncthreads();
        u32 lane = threadIdx.x % kWarp;
#pragma unroll 1
        for (u32 chunk = threadIdx.x / kWarp; chunk < row.share; chunk += kWarps) {
            bool is_there = lane < kWarps && row.first_chunk + chunk < row.end_chunk;
            u64 sum = warp_sum(is_there ? team.sums().get(part_of(chunk, lane)) : 0);
            if (lane == 0) team.sums().set(chunk, sum);
        }
    }

    // The place of a part, after the sums by chunk.
    __device__ static u32 part_of(u32 chunk, u32 warp) { return kSliceChunks + chunk * kWarps + warp; }
    static_assert(kSliceChunks + kSliceChunks * kWarps <= kBins, "sums by warp are in the box");

    // After a pass into the list: copies the team's list into each block, in order, and returns its length; kListed + 1 if it did
    // not fit.
    __device__ u32 order_list(Part part) const {
        u32 listed = team.gather(memory.masses, part);
        if (listed > kListed) return kListed + 1;
        memory.put_in_order(listed);
        return listed;
    }

    // After a pass into both lists and into the total: gives the total to the first warp, which reports it. If both lists are
    // short, copies both at once and gives the length of the first; the second waits, in order, for its turn. Otherwise it returns
    // false, and each list has to be asked for by itself.
    __device__ bool order_lists(u32& listed, u64& weighed) const {
        constexpr u32 kMost = ListMemory::kCounted < kThreads / 2 ? ListMemory::kCounted : kThreads / 2;
        Team::Lengths lengths = team.lengths();
        u64 own = threadIdx.x < kWarp ? block_total() : 0;
        Team::is_read(lengths, own);
        if (threadIdx.x < kWarp) weighed = warp_sum(own);
        lengths = team.gather_both(lengths, memory.masses, kMost);
        bool are_short = lengths.first <= kMost && lengths.second <= kMost;
        if (threadIdx.x == 0) memory.waiting[0] = are_short ? lengths.second : ListMemory::kNoneWaits;
        if (!are_short) return false;
        memory.put_two_in_order(lengths.first, lengths.second);
        listed = lengths.first;
        return true;
    }

  private:
    __device__ void count_delegate(const Pass& pass, float x) const {
        if (has_chance(x)) team.sums().add_one(distance_bin(pass.max, x));
    }

    __device__ bool sees_untouched(const Pass& pass) const { return !pass.adjusted || !row.is_listed_only(); }

    // Whether every token, touched or not, weighs its mass by the logit as sent. Then no token is hidden, and none is visited
    // afterwards.
    __device__ bool sees_all(const Pass& pass) const {
        return !pass.adjusted && pass.weighs_all() && pass.sink != kToList && pass.sink != kToBins;
    }

    // Whether the thread has to look at its untouched tokens of a chunk: not if its delegate is beyond the range, or has too little
    // mass.
    __device__ bool looks(const Pass& pass, u32 chunk) const {
        float most = row.delegate(chunk);
        return sees_untouched(pass) && descending(most) <= (u32)(pass.last_key >> 32) && may_need(pass, most);
    }
    __device__ static bool may_need(const Pass& pass, float most) {
        return pass.need == 0 || !masses_are_below(exponent(most, pass.max, pass.scale), pass.need);
    }

    // Whether the chunks that have tokens to list are noted before masses are summed, or in the same loop. The loop over logits of
    // 16 bits is faster without this work; the one over 32 bits is no slower with it.
    static constexpr bool kNotesFirst = Element::kFormat != kRowF32;

    // Sums the masses of all tokens. A warp without a likely token, as most are, computes its masses in fewer instructions. Returns
    // what `chunks_to_list` does.
    __device__ u32 sum_masses(const Pass& pass) const {
        if (!sees_untouched(pass)) return 0;
        bool as_sent = sees_all(pass) || pass.with_total;
        u64 sum = 0;
        u32 to_list = kNotesFirst && pass.sink == kToList ? chunks_to_list(pass) : 0, last = (u32)(pass.last_key >> 32);
        u32 above = as_sent ? row.above() : 0;
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            float x[kPerThread];
            row.load_logits(chunk, x);
            if (!as_sent) row.hide_touched(chunk, x);
            float most = row.delegate(chunk);
            if constexpr (!kNotesFirst) to_list |= (u32)(descending(most) <= last) << (chunk - row.first_chunk);
            // The delegate is the largest of the untouched tokens: a touched one above it may be a likely one.
            bool is_above = above >> (chunk - row.first_chunk) & 1;
            if (__any_sync(kAllLanes, is_above || !(exponent(most, pass.max, pass.scale) < kFar))) {
                if (pass.sink == kToBins) {
#pragma unroll
                    for (u32 k = 0; k < kPerThread; ++k) sum += bin_mass(pass, x[k]);
                } else {
#pragma unroll
                    for (u32 k = 0; k < kPerThread; ++k) sum += pass.mass(x[k]);
                }
            } else {
                u32 small = 0;
#pragma unroll
                for (u32 k = 0; k < kPerThread; ++k) small += mass_of_far_exponent(exponent(x[k], pass.max, pass.scale));
                sum += small;
            }
            add_sum(pass, chunk, sum);
        }
        return to_list;
    }

    // Adds the mass of a token to its bin. If it belongs in the last bin, as most do, it is returned instead, to be summed.
    __device__ u64 bin_mass(const Pass& pass, float x) const {
        float y = exponent(x, pass.max, pass.scale);
        u64 own = mass_of_exponent(y);
        if (!(y >= kFar)) return own;
        team.sums().add(exponent_bin(y), own);
        return 0;
    }

    // Sums masses in a range, or counts tokens from `from` on.
    __device__ void sum_range(const Pass& pass, u32 from) const {
        if (pass.only_counts()) {
            sum_chunks(pass, [&](u32 token, float x) { return (u64)(pass.has(token, x) && token >= from); });
        } else sum_chunks(pass, [&](u32 token, float x) { return pass.weight(token, x); });
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

    // At the end of a chunk, adds the lanes' sums to where sums go, and resets those that were added. A sum of 384 masses has 49
    // bits.
    __device__ void add_sum(const Pass& pass, u32 chunk, u64& sum) const {
        if (pass.sink != kToChunks && chunk + 1 < row.end_chunk) return;
        u64 of_warp = warp_sum(sum);
        if (threadIdx.x % kWarp == 0) {
            if (pass.sink == kToChunks) set_part(chunk, threadIdx.x / kWarp, of_warp);
            else team.sums().add(pass.sink == kToBins ? kBins - 1 : 0, of_warp);
        }
        sum = 0;
    }

    // A bit for each chunk of the slice in which the thread may have tokens to list.
    __device__ u32 chunks_to_list(const Pass& pass) const {
        u32 chunks = 0, last = (u32)(pass.last_key >> 32);
        if (!sees_untouched(pass)) return 0;
#pragma unroll 4
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            chunks |= (u32)(descending(row.delegate(chunk)) <= last) << (chunk - row.first_chunk);
        }
        return chunks;
    }
    static_assert(kSliceChunks <= 32, "each has a bit");

    // Puts untouched tokens in the range into the list. The work is noted first and then shared out, so that no thread has several
    // items to do one after the other. For the first tokens of the order, the threads that have some are noted, since each of their
    // vectors is read quickly. For other ranges, at which nearly all threads look, the tokens are noted.
    __device__ void list_untouched(const Pass& pass, u32 to_list, bool lists_both) const {
        bool by_thread = pass.begins_the_order();
#pragma unroll 1
        for (; to_list != 0; to_list &= to_list - 1) {
            u32 chunk = row.first_chunk + __ffs(to_list) - 1;
            if (!may_need(pass, row.delegate(chunk))) continue;
            if (by_thread) note((u64)chunk << 32 | threadIdx.x);
            else each_in_range(pass, chunk, [&](u32 token, float x) {
                if (pass.need == 0 || pass.mass(x) >= pass.need) note(key_of(token, x));
            });
        }
        __syncthreads();
        u32 noted = team.noted();
        // Each noted thread has at least its delegate to list. Noted tokens without mass would not be listed, so a search by mass
        // may narrow once more than it needs to.
        if (noted > kListed) {
            if (threadIdx.x == 0) team.overflow(lists_both);
            return;
        }
        u32 share = by_thread ? Row<Element>::kVectors : 1;
        // Begins with the last warps, because the first ones have touched tokens to list.
#pragma unroll 1
        for (u32 i = kThreads - 1 - threadIdx.x; i < noted * share; i += kThreads) {
            u64 one = memory.masses[i / share];
            if (!by_thread) take(pass, token_of(one), logit_of(one));
            else list_vector(pass, row.vector_of_thread((u32)(one >> 32), (u32)one, i % share), lists_both);
        }
    }

    __device__ void note(u64 what) const {
        u32 at = team.note();
        if (at < kListed) memory.masses[at] = what;
    }

    // Lists those tokens of a vector that are not beyond the end of the list. For both lists, `which` has a low bit for each token
    // of the first and a high bit for each of the second. No untouched token is in the first if only tokens with an adjust have a
    // chance.
    __device__ void list_vector(const Pass& pass, const typename Row<Element>::Vector& vector, bool lists_both) const {
        constexpr u32 kEach = Element::kPerVector;
        u32 last = (u32)(pass.last_key >> 32), raw_last = 0, which = 0;
        if (lists_both) {
            last = row.is_listed_only() ? 0 : last_of(0);
            raw_last = last_of(1);
        }
#pragma unroll
        for (u32 k = 0; k < kEach; ++k) {
            u32 place = descending(element<Element>(vector.logits, k));
            which |= (u32)(place <= last) << k | (u32)(place <= raw_last) << (kEach + k);
        }
        which &= vector.which << kEach | vector.which;
#pragma unroll 1
        for (; which != 0; which &= which - 1) {
            u32 bit = __ffs(which) - 1, k = bit % kEach;
            u64 key = key_of(vector.token + k, element<Element>(vector.logits, k));
            team.append(key, !lists_both ? kWhole : bit < kEach ? kFirst : kSecond);
        }
    }

    // Puts a touched token into each of the two lists that goes down to it.
    __device__ void append_touched(const Touched& touched) const {
        if (descending(touched.x) <= last_of(0)) team.append(key_of(touched.token, touched.x), kFirst);
        if (descending(touched.raw) <= last_of(1)) team.append(key_of(touched.token, touched.raw), kSecond);
    }

    // Where a list that has a floor ends, as the upper half of a key.
    __device__ u32 last_of(u32 list) const { return ~(u32)memory.floors[list]; }

    // Puts untouched tokens in the range into bins, one by one: there are few once a search has narrowed, and only they are
    // weighed.
    __device__ void bin_untouched(const Pass& pass) const {
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            if (looks(pass, chunk)) each_in_range(pass, chunk, [&](u32 token, float x) { take(pass, token, x); });
        }
    }

    // Calls f(token, logit) for the thread's untouched tokens of a chunk in the range.
    template <class F>
    __device__ void each_in_range(const Pass& pass, u32 chunk, F f) const {
        float x[kPerThread];
        row.load_untouched(chunk, x);
        u32 which = 0;
#pragma unroll
        for (u32 k = 0; k < kPerThread; ++k) which |= (u32)pass.has(row.token_at(chunk, k), x[k]) << k;
#pragma unroll 1
        for (; which != 0; which &= which - 1) {
            u32 k = __ffs(which) - 1;
            f(row.token_at(chunk, k), row.logit_at(chunk, k));
        }
    }

    // Puts one token of the range where the pass's results go.
    __device__ void take(const Pass& pass, u32 token, float x) const {
        u64 own = pass.weight(token, x);
        if (own == 0) return;
        if (pass.sink == kToList) return team.append(key_of(token, x), kWhole);
        if (pass.sink == kToChunks) return add_token(token, own);
        if (pass.sink == kToTotal) team.sums().add(0, own);
        else if (pass.counts) team.sums().add_one(pass.bin_of(x));
        else team.sums().add(pass.bin_of(x), own);
    }
};
