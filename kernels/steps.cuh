// One row as a machine of steps: each step looks at what the last pass found and sets up the next one. A loop with
// switches, because then the pass over the logits is in the kernel once, however many roads lead to it: little code, and
// no registers to save.
//
// | filters | road |
// |---|---|
// | temperature 0 | the first token of the order |
// | top-k that fits a list | the k first tokens as a list; the other filters work on the list |
// | larger top-k | a search by count |
// | top-p | the whole mass; a list of the first tokens if it reaches p, else a search by mass |
// | min-p, none | masses by chunk |
#pragma once
#include "pass.cuh"

constexpr u64 kTopPOff = 1ull << 32;

enum Step {
    // draw_step
    kBegin, kTopKListed, kTopKFound, kTopPWeighed, kTopPListed, kTopPFound, kWeighed, kDrawn, kRawWeighed,
    // report_step
    kReport, kTopListed, kRanked, kTopFound, kTopExact, kEnd,
    // search_step: ends with `found_key`, or with the list in order, and goes on to `after`
    kSearch, kSearchBinned, kSearchListed, kSearchTied, kFirst, kFirstCounted, kFirstListed
};

enum Needs { kNoPass, kPass, kDelegates };

// What a token is drawn from.
enum Kind {
    kOne,    // greedy: the first token
    kList,   // the first `kept` of the list
    kChunks  // what the last pass weighed
};

template <class Element>
struct Machine {
    const ListMemory& memory;
    const Passes<Element>& passes;
    const RowJob& job;
    u8* outputs;
    RowResult& result;
    u64 best;  // key of the first token
    u32 raw_max;

    u64 left_last_key = kLastKey;  // what masks and filters have left so far: tokens up to this key
    u64 left_need = 0;             // with at least this mass
    u64 total = 0;
    Kind kind = kChunks;
    u32 kept = 0;
    u32 token = 0;

    Pass pass{};  // the one that runs next, or has run; its view, maximum and scale are those of what is left
    Step step = kBegin;
    Step after = kEnd;

    u64 missing = 0;  // search: the weight to reach, counted from the range's first key
    u64 found_key = 0;
    u32 low = 0, high = 0;  // search: the range
    bool ties_count = false;  // search: each of the equal tokens weighs 1
    u32 wanted = 0;         // first: how many
    u32 listed = 0;         // length of the list; kListed + 1 if it did not fit

    u32 rank = 0;
    float logit = 0.0f;
    bool leads_order = false;  // the list begins with the first token of the order and leaves out none

    __device__ void run(const Exchange* exchange) {
        while (step != kEnd) {
            Needs needs = step < kReport ? draw_step(*exchange) : step < kEnd ? report_step(*exchange) : search_step(*exchange);
            if (needs == kPass) exchange = &passes.run(pass);
            if (needs == kDelegates) exchange = &passes.count_delegates(pass.max);
        }
    }

  private:
    __device__ bool is_set(u32 flag) const { return job.flags & flag; }
    __device__ bool fits() const { return listed <= kListed; }
    __device__ bool writes() const { return passes.team.leads() && threadIdx.x == 0; }

    __device__ Needs go(Step next) {
        step = next;
        return kNoPass;
    }

    // A pass over what is left.
    __device__ void aim(bool counts, Sink sink, Binning binning = kByDistance) {
        pass.first_key = 0;
        pass.last_key = left_last_key;
        pass.need = left_need;
        pass.counts = counts;
        pass.sink = sink;
        pass.binning = binning;
    }

    __device__ Pass left() const {
        Pass all = pass;
        all.first_key = 0;
        all.last_key = left_last_key;
        all.need = left_need;
        return all;
    }

    __device__ void view(bool adjusted, float max, float scale) {
        pass.adjusted = adjusted;
        pass.max = max;
        pass.scale = scale;
        left_last_key = kLastKey;
        left_need = 0;
    }

    __device__ Needs weigh(Step next) {
        aim(false, kToChunks);
        step = next;
        return kPass;
    }

    // Lists the first `count` tokens of the order or some more; not what `left` leaves.
    __device__ Needs list_first(u32 count, Step next) {
        wanted = count;
        after = next;
        return go(kFirst);
    }

    // Finds the key at which what is left reaches a weight.
    __device__ Needs search(u64 weight, bool counts, Step next) {
        missing = weight;
        aim(counts, kToBins);
        low = ~(u32)(kLastKey >> 32);
        high = ascending(pass.max);
        after = next;
        return go(kSearch);
    }

    // ---- what the token is drawn from ----

    __device__ Needs draw_step(const Exchange& exchange) {
        switch (step) {
            case kBegin: return begin();
            case kTopKListed: {
                if (!fits()) return search(top_k(), true, kTopKFound);
                memory.weigh_list(pass, listed);
                return filter_list(top_k() < listed ? top_k() : listed, 0);
            }
            case kTopKFound: {
                left_last_key = found_key;
                return top_p_or_rest();
            }
            case kTopPWeighed: {
                missing = top_p_need(job.top_p_fraction, passes.total(exchange));
                return left_last_key == kLastKey ? list_first(kNucleus, kTopPListed) : search(missing, false, kTopPFound);
            }
            case kTopPListed: {
                if (!fits()) return search(missing, false, kTopPFound);
                memory.weigh_list(pass, listed);
                if (memory.reach(listed, missing) == listed) return search(missing, false, kTopPFound);
                return filter_list(listed, missing);
            }
            case kTopPFound: {
                left_last_key = found_key;
                left_need = job.min_p_need;
                return weigh(kWeighed);
            }
            case kWeighed: {
                total = passes.total(exchange);
                if (!is_set(kScore)) token = passes.find(pass, exchange, draw_point(job.uniform, total));
                return go(kDrawn);
            }
            case kDrawn: return drawn();
            default: {
                total = passes.total(exchange);
                return go(kReport);
            }
        }
    }

    __device__ u32 top_k() const { return job.top_k < job.vocab_size ? job.top_k : 0; }

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
        return top_k() <= kListed ? list_first(top_k(), kTopKListed) : search(top_k(), true, kTopKFound);
    }

    __device__ Needs top_p_or_rest() {
        if (job.top_p_fraction < kTopPOff) return weigh(kTopPWeighed);
        left_need = job.min_p_need;
        return weigh(kWeighed);
    }

    // Top-p and min-p on the first `count` of the list. `reached` is what top-p has to reach; 0: its share of the list.
    __device__ Needs filter_list(u32 count, u64 reached) {
        kind = kList;
        kept = count;
        if (job.top_p_fraction < kTopPOff) {
            if (reached == 0) reached = top_p_need(job.top_p_fraction, memory.list_total(kept));
            u32 last = memory.reach(kept, reached);
            kept = last < kept ? last + 1 : kept;
        }
        left_last_key = memory.list[kept - 1];
        left_need = job.min_p_need;
        memory.cut_list(kept, left_need);
        total = memory.list_total(kept);
        if (!is_set(kScore)) token = memory.draw_from_list(kept, draw_point(job.uniform, total));
        return go(kDrawn);
    }

    __device__ Needs drawn() {
        if (token >= job.vocab_size) {
            if (writes()) result = RowResult{0, kBroken, 0, 0.0f, 0.0f, 0, 0};
            return go(kEnd);
        }
        if (is_set(kReportProcessed)) return go(kReport);
        if (!is_set(kReportRaw)) {
            if (writes()) result = RowResult{0, kOk, token, 0.0f, 0.0f, 0, 0};
            return go(kEnd);
        }
        view(false, from_ascending(raw_max), job.raw_scale);
        kind = kChunks;
        return weigh(kRawWeighed);
    }

    // ---- what is told about it ----

    __device__ u32 top_n() const { return job.top_n < job.vocab_size ? job.top_n : job.vocab_size; }
    __device__ ReportedToken* reported() const { return reinterpret_cast<ReportedToken*>(outputs + job.report); }

    __device__ Needs report_step(const Exchange& exchange) {
        switch (step) {
            case kReport: {
                logit = passes.row.value(pass.adjusted, token);
                return kind == kChunks ? list_first(top_n(), kTopListed) : go(kTopListed);
            }
            case kTopListed: return top_listed();
            case kRanked: {
                rank = 1 + (has_chance(logit) ? (u32)passes.total(exchange) : token + (u32)exchange.bins[1]);
                return top_written();
            }
            case kTopFound: {
                aim(true, kToList);
                if (found_key < left_last_key) pass.last_key = found_key;
                step = kTopExact;
                return kPass;
            }
            default: {
                listed = passes.order_list(exchange);
                return finish();
            }
        }
    }

    __device__ Needs top_listed() {
        leads_order = fits();
        u64 key = key_of(token, logit);
        if (leads_order && listed > 0 && key <= memory.list[listed - 1]) {
            rank = 1 + memory.place_in_list(listed, key);
            return top_written();
        }
        // Before a token without a chance stand all that have one and, of its kind, those with smaller ids: that is all
        // smaller ids, and the larger ones with a chance.
        aim(true, has_chance(logit) ? kToChunks : kToBins, kByToken);
        pass.need = 0;
        pass.last_key = has_chance(logit) ? key - 1 : kLastKey;
        pass.origin = token;
        step = kRanked;
        return kPass;
    }

    __device__ Needs top_written() {
        if (leads_order) {
            bool complete = kind != kChunks || left_need == 0 || memory.left_in_list(left(), listed) >= top_n();
            if (complete) return finish();
        }
        // Masses are not strictly ordered like logits, so a token that is left may stand behind one that min-p cut.
        return top_n() > 0 ? search(top_n(), true, kTopFound) : finish();
    }

    __device__ Needs finish() {
        bool fit = fits();
        bool leader = passes.team.leads();
        u32 count = fit ? memory.write_top(left(), listed, top_n(), leader ? reported() : nullptr) : 0;
        if (leader) {
#pragma unroll 1
            for (u32 i = threadIdx.x; i < job.requested_count; i += kThreads) {
                u32 asked = passes.row.requested[i];
                float x = passes.row.value(pass.adjusted, asked);
                reported()[job.top_n + i] = ReportedToken{asked, left().keeps(asked, x) ? x : minus_infinity()};
            }
        }
        if (writes()) {
            float kept_logit = left().keeps(token, logit) ? logit : minus_infinity();
            result = RowResult{total, fit ? kOk : kBroken, token, kept_logit, pass.max, rank, count};
        }
        return go(kEnd);
    }

    // ---- searches ----

    __device__ Needs search_step(const Exchange& exchange) {
        switch (step) {
            case kSearch: {
                set_range();
                pass.sink = kToBins;
                step = kSearchBinned;
                return kPass;
            }
            case kSearchBinned: return narrow(exchange);
            case kSearchListed: {
                listed = passes.order_list(exchange);
                if (!fits()) return go(kSearch);
                found_key = memory.key_reaching(pass, listed, missing);
                return go(after);
            }
            case kSearchTied: {
                u64 index = (missing - 1) / each_tie();
                found_key = index < passes.total(exchange) ? key_of(passes.find(pass, exchange, index), from_ascending(low))
                                                           : kLastKey;
                return go(after);
            }
            case kFirst: {
                listed = 0;
                if (wanted == 0) return go(after);
                step = kFirstCounted;
                return kDelegates;
            }
            case kFirstCounted: return list_from_bin(exchange);
            default: {
                listed = passes.order_list(exchange);
                return go(after);
            }
        }
    }

    __device__ void set_range() {
        pass.first_key = (u64)~high << 32;
        pass.last_key = (u64)~low << 32 | 0xFFFFFFFFu;
        if (pass.last_key > left_last_key) pass.last_key = left_last_key;
    }

    // What each of the equal tokens in the range weighs.
    __device__ u64 each_tie() const { return ties_count ? 1 : pass.mass(from_ascending(low)); }

    // The bin in which the weight is reached is the next range, until its tokens fit into a list or are all equal: six
    // rounds at most, since all but the first narrow 32 bits by 9.
    __device__ Needs narrow(const Exchange& exchange) {
        Place place = memory.block.locate(kBins, missing - 1, [&](u32 bin) { return exchange.bins[bin]; });
        if (place.index == kBins) {
            found_key = kLastKey;
            return go(after);
        }
        missing -= place.before;
        u64 inside = exchange.bins[place.index];
        narrow_to(place.index);
        set_range();
        u64 largest = pass.counts ? 1 : pass.mass(from_ascending(high));
        pass.binning = kByValue;
        pass.origin = high;
        pass.shift = 23 - __clz((high - low) | (kBins - 1));
        if (low == high) {
            ties_count = pass.counts;
            pass.counts = true;
            pass.sink = kToChunks;
            step = kSearchTied;
            return kPass;
        }
        if (inside > largest * kListed) return go(kSearch);
        pass.sink = kToList;
        step = kSearchListed;
        return kPass;
    }

    // The values of one bin, as a range. Bins fall as values rise.
    __device__ void narrow_to(u32 bin) {
        u32 first = low, end = high;
#pragma unroll 1
        while (first < end) {  // to the first value in the bin or above it
            u32 middle = first + (end - first) / 2;
            if (pass.bin_of_value(middle) <= bin) end = middle;
            else first = middle + 1;
        }
        u32 last = high, begin = low;
#pragma unroll 1
        while (begin < last) {  // to the last value in the bin or below it
            u32 middle = last - (last - begin) / 2;
            if (pass.bin_of_value(middle) >= bin) begin = middle;
            else last = middle - 1;
        }
        low = first;
        high = last;
    }

    // If n threads have a delegate in the bins up to some bin, then n tokens are in them, and only those threads have to
    // look again (delegates: Dr. Top-k, arXiv 2109.08219).
    __device__ Needs list_from_bin(const Exchange& exchange) {
        Place place = memory.block.locate(kBins, wanted - 1, [&](u32 bin) { return exchange.bins[bin]; });
        aim(true, kToList);
        pass.need = 0;
        pass.last_key = kLastKey;
        bool untouched = !pass.adjusted || !passes.row.is_listed_only();
        if (untouched && place.index < kBins) {
            low = ~(u32)(kLastKey >> 32);
            high = ascending(pass.max);
            narrow_to(place.index);
            pass.last_key = (u64)~low << 32 | 0xFFFFFFFFu;
        }
        step = kFirstListed;
        return kPass;
    }
};
