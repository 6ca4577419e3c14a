// How a row is sampled, as a state machine: each step looks at what the last pass over the row found and sets up the next pass. It
// is a loop with switches, because then the code of a pass is in the kernel once, however many paths lead to it.
//
// | filters | path |
// |---|---|
// | temperature 0 | the first token of the order |
// | top-k that fits a list | the k first tokens as a list; the other filters work on the list |
// | larger top-k | a search by count |
// | top-p | masses by bins of mass; a list of the tokens down to the bin in which p is reached, or of those in that bin |
// | min-p, none | masses by chunk |
#pragma once
#include "search.cuh"

constexpr u64 kTopPOff = 1ull << 32;

// What a token is drawn from.
enum Kind {
    kOne,    // greedy: the first token
    kList,   // the first `kept` of the list
    kChunks  // what the last pass weighed
};

template <class Element>
struct Machine : Search<Element> {
    using Base = Search<Element>;
    using Base::aim, Base::begins, Base::find, Base::fits, Base::found, Base::found_key, Base::go, Base::left, Base::left_last_key;
    using Base::left_need, Base::list_and_weigh, Base::list_bins, Base::list_down_to, Base::list_first, Base::listed, Base::memory, Base::missing;
    using Base::pass, Base::passes, Base::point, Base::search, Base::search_in, Base::search_step, Base::step, Base::view, Base::weigh;
    using Base::kWaits, Base::wanted, Base::weighed;

    const RowJob& job;
    u8* outputs;
    RowResult& result;
    u64 best;  // key of the first token
    u32 raw_max;

    // Mass of the distribution that the token is drawn from; until then, the mass of the bin in which top-p is reached.
    u64 total = 0;
    Kind kind = kChunks;
    u32 kept = 0;
    u32 token = 0;

    u32 rank = 0;
    float logit = 0.0f;
    bool leads_order = false;  // the list has the first tokens of the order, without a gap

    __device__ Machine(const ListMemory& memory, const Passes<Element>& passes, const RowJob& job, u8* outputs,
                       RowResult& result, u64 best, u32 raw_max)
        : Base{memory, passes}, job(job), outputs(outputs), result(result), best(best), raw_max(raw_max) {}

    __device__ __forceinline__ void run() {
        while (step != kEnd) {
            // Steps follow each other at once if nothing is needed between them: a turn of the loop takes longer than a test.
            Needs needs = step < kReport ? draw_step() : kNoPass;
            if (needs == kNoPass && step >= kReport && step < kEnd) needs = report_step();
            if (needs == kNoPass && step > kEnd) needs = search_step();
            Part part = kSecond;
            if (needs == kPass) {
                // Of the two lists, the adjusted row's is asked for first.
                bool lists_both = step == kBothListed;
                passes.run(pass, lists_both);
                if (lists_both) {
                    if (!passes.order_lists(listed, weighed)) needs = kOrder, part = kFirst;
                } else {
                    if (pass.sink == kToChunks) weighed = passes.total_of_chunks();
                    else if (pass.sums()) weighed = passes.total();
                    if (pass.sink == kToList) needs = kOrder, part = kWhole;
                }
            }
            if (needs == kOrder && part == kSecond && memory.waiting[0] != ListMemory::kNoneWaits) {
                listed = memory.waiting[0];
                begins = kHalf;
            } else if (needs == kOrder) listed = passes.order_list(part);
            if (needs == kDelegates) passes.count_delegates(pass, wanted);
            if (needs == kToken) found = Finding<Element>{passes}.find(pass, point);
        }
    }

    // Whether groups of threads are asked for bounds of the first tokens: those to draw from, or those to report of the row as
    // sent. All blocks of the team give the same answer.
    __device__ static bool asks_groups(const RowJob& job, const Team& team) {
        bool draws = (job.flags & kGreedy) == 0 && ((job.flags & kScore) == 0 || (job.flags & kReportProcessed) != 0);
        return asks_raw_groups(job, team) || (draws && team.groups_tell(top_k(job)));
    }

    // Finds these bounds for both views, before anything else: the next phase but one reuses the box that the first look has
    // filled.
    __device__ void bound_first(u64 group) const {
        if (asks_groups(job, passes.team)) passes.find_floors(group, logit_of(best), top_k(), from_ascending(raw_max), top_n());
    }

  private:
    __device__ static bool asks_raw_groups(const RowJob& job, const Team& team) {
        return (job.flags & kReportRaw) != 0 && team.groups_tell(top_n(job));
    }

    __device__ bool is_set(u32 flag) const { return job.flags & flag; }
    __device__ bool writes() const { return passes.team.leads() && threadIdx.x == 0; }

    // ---- what the token is drawn from ----

    __device__ Needs draw_step() {
        Needs needs = choose();
        if (step == kFilter) needs = filter_list();
        return step == kDrawn ? drawn() : needs;
    }

    __device__ Needs choose() {
        switch (step) {
            case kBegin: return begin();
            case kBothListed: {
                view(true, logit_of(best), job.scale);
                // A list that does not fit half of the room may fit the whole.
                if (!fits()) return list_down_to(memory.floors[0], kTopKGrouped);
                wanted = kWaits;
                return filter(top_k() < listed ? top_k() : listed, 0);
            }
            case kTopKGrouped: {
                // Tokens close together share few groups. Delegates, the largest logits of single threads, tell more.
                if (!fits()) return list_first(top_k(), kTopKListed);
                [[fallthrough]];
            }
            case kTopKListed: {
                if (!fits()) return search(top_k(), true, kTopKFound);
                return filter(top_k() < listed ? top_k() : listed, 0);
            }
            case kTopKFound: {
                left_last_key = found_key;
                return top_p_or_rest();
            }
            case kTopPWeighed: {
                missing = top_p_need(job.top_p_fraction, weighed);
                return search(missing, false, kTopPFound);
            }
            case kTopPBinned: return top_p_binned();
            case kTopPListed: {
                if (!fits()) return search_in(missing, Place{found, weighed, total}, kTopPFound);
                return filter(listed, missing);
            }
            case kTopPFound: {
                left_last_key = found_key;
                left_need = job.min_p_need;
                return weigh_to_draw();
            }
            case kRawListed: {
                total = weighed;
                if (fits()) return go(kReport);
                return list_and_weigh(memory.floors[1], kRawWeighed);
            }
            case kWeighed: {
                total = weighed;
                return is_set(kScore) ? go(kDrawn) : find(draw_point(job.uniform, total), kTokenFound);
            }
            case kTokenFound: {
                token = found;
                return go(kDrawn);
            }
            default: {
                total = weighed;
                return go(kReport);
            }
        }
    }

    __device__ static u32 top_k(const RowJob& job) { return job.top_k < job.vocab_size ? job.top_k : 0; }
    __device__ u32 top_k() const { return top_k(job); }

    __device__ Needs begin() {
        token = job.token;
        view(true, logit_of(best), job.scale);
        if (is_set(kScore) && !is_set(kReportProcessed)) return go(kDrawn);
        if (is_set(kGreedy)) {
            pass.scale = 1.0f;
            left_last_key = best;
            total = kMassOne;
            kind = kOne;
            listed = 1;
            memory.list_one(best);
            if (!is_set(kScore)) token = token_of(best);
            return go(kDrawn);
        }
        if (top_k() == 0) return top_p_or_rest();
        if (passes.team.groups_tell(top_k()) && asks_raw_groups(job, passes.team) && !is_set(kReportProcessed)) {
            // What is asked of the row as sent comes from the same phase.
            view(false, from_ascending(raw_max), job.raw_scale);
            u32 raw_floor = memory.floors[1], floor = passes.row.is_listed_only() ? raw_floor : (u32)memory.floors[0];
            return list_and_weigh(floor < raw_floor ? floor : raw_floor, kBothListed);
        }
        if (passes.team.groups_tell(top_k())) return list_down_to(memory.floors[0], kTopKGrouped);
        return top_k() <= kListed ? list_first(top_k(), kTopKListed) : search(top_k(), true, kTopKFound);
    }

    __device__ Needs top_p_or_rest() {
        if (job.top_p_fraction < kTopPOff) {
            // Bins by mass are of all tokens, so they do not help if a filter has cut before.
            if (left_last_key != kLastKey) return weigh(kToTotal, kTopPWeighed);
            aim(false, kToBins, kByExponent);
            step = kTopPBinned;
            return kPass;
        }
        left_need = job.min_p_need;
        return weigh_to_draw();
    }

    // One pass has found the whole mass and the bin in which top-p's share of it is reached. All tokens down to that bin become a
    // list, if they are few.
    __device__ Needs top_p_binned() {
        auto point = [&](u64 all) {
            missing = top_p_need(job.top_p_fraction, all);
            return missing - 1;
        };
        u64 own = 0;
        Place place = memory.block.locate_by(kBins, point, [&](u32 bin) { return own = passes.team.bin(bin); });
        if (place.index >= kBins - 1) return search(missing, false, kTopPFound);
        // A bin has at least as many tokens as its mass divided by the most that one of its tokens may have. So on flat rows a list
        // is not even begun. First a cheaper test, which mostly suffices: the mass of all bins up to here, divided by the most for
        // a token of the last one, is no less than the sum of these bounds.
        if ((place.before + place.weight) >> most_bits_of_bin(place.index) > kListed) {
            if (memory.block.sum(least_tokens(own, place.index)) > kListed) return search_in(missing, place, kTopPFound);
        }
        found = place.index;
        weighed = place.before;
        total = place.weight;
        return list_bins(place.index, kTopPListed);
    }

    // The thread's share of the sum of these bounds, up to a bin. If there are as many threads as bins, it has read its bin
    // already.
    __device__ u64 least_tokens([[maybe_unused]] u64 own, u32 last) const {
        if constexpr (kBins == kThreads) return threadIdx.x <= last ? own >> most_bits_of_bin(threadIdx.x) : 0;
        u64 least = 0;
#pragma unroll 1
        for (u32 bin = threadIdx.x; bin <= last; bin += kThreads) least += passes.team.bin(bin) >> most_bits_of_bin(bin);
        return least;
    }

    __device__ Needs weigh_to_draw() { return weigh(is_set(kScore) ? kToTotal : kToChunks, kWeighed); }

    // Applies top-p and min-p to the first `count` tokens of the list. Top-p has to reach `mass`; 0 for its share of the list.
    __device__ Needs filter(u32 count, u64 mass) {
        kept = count;
        missing = mass;
        return go(kFilter);
    }

    __device__ Needs filter_list() {
        bool cuts = job.top_p_fraction < kTopPOff, is_short = listed <= ListMemory::kCounted;
        auto need = [&](u64 all) { return missing == 0 ? top_p_need(job.top_p_fraction, all) : missing; };
        if (is_short) {
            ListMemory::Cut cut = memory.cut_short(pass, kept, cuts, need, job.min_p_need);
            if (cut.kept == 0) return search(missing, false, kTopPFound);
            kept = cut.kept;
            total = cut.total;
        } else {
            memory.weigh_list(pass, listed);
            if (cuts) {
                Place last = memory.reach(kept, need);
                if (missing != 0 && last.index == kept) return search(missing, false, kTopPFound);
                kept = last.index < kept ? last.index + 1 : kept;
                total = last.before + last.weight;
            }
            if (job.min_p_need > 0) memory.cut_list(kept, job.min_p_need);
            if (job.min_p_need > 0 || !cuts) total = memory.list_total(kept);
        }
        kind = kList;
        left_last_key = memory.list[kept - 1];
        left_need = job.min_p_need;
        if (is_set(kScore)) return go(kDrawn);
        u64 point = draw_point(job.uniform, total);
        token = is_short ? memory.draw_short(kept, point) : memory.draw_from_list(kept, point, passes.team.sums(), job.vocab_size);
        return go(kDrawn);
    }

    __device__ Needs drawn() {
        if (token >= job.vocab_size) {
            if (writes()) result = RowResult{0, 0, best, kBroken, 0, 0.0f, 0.0f, 0, 0};
            return go(kEnd);
        }
        if (is_set(kKeep) && passes.team.leads()) keep();
        if (is_set(kReportProcessed)) return go(kReport);
        if (!is_set(kReportRaw)) {
            if (writes()) result = RowResult{total, left_last_key, best, kOk, token, 0.0f, 0.0f, 0, 0};
            return go(kEnd);
        }
        view(false, from_ascending(raw_max), job.raw_scale);
        // This read is under way while other things are done.
        logit = passes.row.raw_value(token);
        kind = kChunks;
        // The first tokens as sent are listed already if nothing came between, unless they did not fit.
        if (wanted == kWaits) {
            step = kRawListed;
            return kOrder;
        }
        // The first tokens come with the total if their bound is known.
        if (asks_raw_groups(job, passes.team)) return list_and_weigh(memory.floors[1], kRawWeighed);
        return weigh(kToTotal, kRawWeighed);
    }

    // Writes the distribution that the token was drawn from: the tokens, if they are a list of at most `most_left`. Otherwise the
    // host cuts them from the row.
    __device__ void keep() const {
        Left* to = reinterpret_cast<Left*>(outputs + job.left);
        bool lists = kind == kList && kept <= job.most_left;
        if (threadIdx.x == 0) *to = Left{total, left_last_key, lists ? kept : kUnlisted};
        ReportedToken* tokens = reinterpret_cast<ReportedToken*>(to + 1);
#pragma unroll 1
        for (u32 i = threadIdx.x; lists && i < kept; i += kThreads) {
            tokens[i] = ReportedToken{token_of(memory.list[i]), logit_of(memory.list[i])};
        }
    }

    // ---- what is reported about the token ----

    __device__ static u32 top_n(const RowJob& job) { return job.top_n < job.vocab_size ? job.top_n : job.vocab_size; }
    __device__ u32 top_n() const { return top_n(job); }
    __device__ ReportedToken* reported() const { return reinterpret_cast<ReportedToken*>(outputs + job.report); }

    // Each step is followed by the next one at once, unless something has to be done before.
    __device__ Needs report_step() {
        Needs needs = kNoPass;
        if (step == kReport) {
            if (pass.adjusted) logit = passes.row.value(true, token);
            needs = kind == kChunks ? list_top() : go(kTopListed);
        }
        if (needs == kNoPass && step == kTopGrouped) needs = fits() ? go(kTopListed) : list_first(top_n(), kTopListed);
        if (needs == kNoPass && step == kTopListed) needs = top_listed();
        else if (step == kRanked) {
            rank = 1 + (u32)weighed + (has_chance(logit) ? 0 : token);
            needs = go(kTopWritten);
        }
        if (needs == kNoPass && step == kTopWritten) needs = top_written();
        else if (step == kTopFound) {
            aim(true, kToList);
            if (found_key < left_last_key) pass.last_key = found_key;
            step = kFinish;
            return kPass;
        }
        return needs == kNoPass && step == kFinish ? finish() : needs;
    }

    __device__ Needs list_top() {
        if (!pass.adjusted && asks_raw_groups(job, passes.team)) return go(kTopGrouped);
        return list_first(top_n(), kTopListed);
    }

    __device__ Needs top_listed() {
        leads_order = fits();
        if (is_set(kUnranked)) return go(kTopWritten);
        u64 key = key_of(token, logit);
        if (leads_order && listed > 0 && key <= memory.list[begins + listed - 1]) {
            rank = 1 + memory.place_in_list(begins, listed, key);
            return go(kTopWritten);
        }
        // A token without a chance comes after all that have one, and after those of its kind with smaller ids. That is after all
        // smaller ids, and after the larger ids with a chance.
        aim(true, kToTotal, has_chance(logit) ? kByDistance : kFromOrigin);
        pass.need = 0;
        pass.last_key = has_chance(logit) ? key - 1 : kLastKey;
        pass.origin = token;
        step = kRanked;
        return kPass;
    }

    __device__ Needs top_written() {
        if (leads_order) {
            bool complete = kind != kChunks || left_need == 0 || memory.left_in_list(left(), begins, listed) >= top_n();
            if (complete) return go(kFinish);
        }
        // Masses are not strictly ordered like logits, so a token that is left may come after one that min-p cut.
        return top_n() > 0 ? search(top_n(), true, kTopFound) : go(kFinish);
    }

    __device__ Needs finish() {
        bool fit = fits();
        bool leader = passes.team.leads();
        u32 count = fit ? memory.write_top(left(), begins, listed, top_n(), leader ? reported() : nullptr) : 0;
        if (leader) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < job.requested_count; i += kThreads) {
                u32 asked = passes.row.requested()[i];
                float x = passes.row.value(pass.adjusted, asked);
                reported()[job.top_n + i] = ReportedToken{asked, left().keeps(asked, x) ? x : minus_infinity()};
            }
        }
        if (writes()) {
            float kept_logit = left().keeps(token, logit) ? logit : minus_infinity();
            u32 status = fit ? kOk : kBroken;
            result = RowResult{total, left_last_key, best, status, token, kept_logit, pass.max, rank, count};
        }
        return go(kEnd);
    }
};
