// One row as a machine of steps: each step looks at what the last pass found and sets up the next one. A loop with
// switches, because then the pass over the logits is in the kernel once, however many roads lead to it.
//
// | filters | road |
// |---|---|
// | temperature 0 | the first token of the order |
// | top-k that fits a list | the k first tokens as a list; the other filters work on the list |
// | larger top-k | a search by count |
// | top-p | the whole mass; a list of the first tokens if it reaches p, else a search by mass |
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
    using Base::aim, Base::find, Base::fits, Base::found, Base::found_key, Base::go, Base::left, Base::left_last_key;
    using Base::left_need, Base::list_first, Base::list_until, Base::listed, Base::memory, Base::missing, Base::pass;
    using Base::passes, Base::point, Base::reached, Base::search, Base::search_step, Base::step, Base::view, Base::weigh;
    using Base::weighed;

    const RowJob& job;
    u8* outputs;
    RowResult& result;
    u64 best;  // key of the first token
    u32 raw_max;

    u64 total = 0;
    Kind kind = kChunks;
    u32 kept = 0;
    u64 wanted_mass = 0;
    u32 token = 0;

    u32 rank = 0;
    float logit = 0.0f;
    bool leads_order = false;  // the list begins with the first token of the order and leaves out none

    __device__ Machine(const ListMemory& memory, const Passes<Element>& passes, const RowJob& job, u8* outputs,
                       RowResult& result, u64 best, u32 raw_max)
        : Base{memory, passes}, job(job), outputs(outputs), result(result), best(best), raw_max(raw_max) {}

    __device__ __forceinline__ void run() {
        while (step != kEnd) {
            Needs needs = step < kReport ? draw_step() : step < kEnd ? report_step() : search_step();
            if (needs == kPass) {
                passes.run(pass);
                if (pass.sink == kToList) listed = passes.order_list();
                else if (pass.sink != kToBins) weighed = passes.total();
            }
            if (needs == kDelegates) passes.weigh_delegates(pass, reached > 0);
            if (needs == kToken) found = passes.find(pass, point);
        }
    }

  private:
    __device__ bool is_set(u32 flag) const { return job.flags & flag; }
    __device__ bool writes() const { return passes.team.leads() && threadIdx.x == 0; }

    // ---- what the token is drawn from ----

    __device__ Needs draw_step() {
        switch (step) {
            case kBegin: return begin();
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
                return left_last_key == kLastKey ? list_until(missing, kTopPListed) : search(missing, false, kTopPFound);
            }
            case kTopPListed: {
                if (!fits()) return search(missing, false, kTopPFound);
                return filter(listed, missing);
            }
            case kFilter: return filter_list();
            case kTopPFound: {
                left_last_key = found_key;
                left_need = job.min_p_need;
                return weigh_to_draw();
            }
            case kWeighed: {
                total = weighed;
                return is_set(kScore) ? go(kDrawn) : find(draw_point(job.uniform, total), kTokenFound);
            }
            case kTokenFound: {
                token = found;
                return go(kDrawn);
            }
            case kDrawn: return drawn();
            default: {
                total = weighed;
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
        if (job.top_p_fraction < kTopPOff) return weigh(kToTotal, kTopPWeighed);
        left_need = job.min_p_need;
        return weigh_to_draw();
    }

    __device__ Needs weigh_to_draw() { return weigh(is_set(kScore) ? kToTotal : kToChunks, kWeighed); }

    // Top-p and min-p on the first `count` of the list. `mass` is what top-p has to reach; 0: its share of the list.
    __device__ Needs filter(u32 count, u64 mass) {
        kept = count;
        wanted_mass = mass;
        return go(kFilter);
    }

    __device__ Needs filter_list() {
        memory.weigh_list(pass, listed);
        if (job.top_p_fraction < kTopPOff) {
            bool is_share = wanted_mass == 0;
            u32 last = memory.reach(kept, is_share ? top_p_need(job.top_p_fraction, memory.list_total(kept)) : wanted_mass);
            if (!is_share && last == kept) return search(missing, false, kTopPFound);
            kept = last < kept ? last + 1 : kept;
        }
        kind = kList;
        left_last_key = memory.list[kept - 1];
        left_need = job.min_p_need;
        memory.cut_list(kept, left_need);
        total = memory.list_total(kept);
        if (!is_set(kScore)) {
            token = memory.draw_from_list(kept, draw_point(job.uniform, total), passes.team.sums(), job.vocab_size);
        }
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
        kind = kChunks;
        return weigh(kToTotal, kRawWeighed);
    }

    // What the token was drawn from: the tokens if they are a short list, else the host cuts them from the row.
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

    // ---- what is told about it ----

    __device__ u32 top_n() const { return job.top_n < job.vocab_size ? job.top_n : job.vocab_size; }
    __device__ ReportedToken* reported() const { return reinterpret_cast<ReportedToken*>(outputs + job.report); }

    __device__ Needs report_step() {
        switch (step) {
            case kReport: {
                logit = passes.row.value(pass.adjusted, token);
                return kind == kChunks ? list_first(top_n(), kTopListed) : go(kTopListed);
            }
            case kTopListed: return top_listed();
            case kRanked: {
                rank = 1 + (u32)weighed + (has_chance(logit) ? 0 : token);
                return go(kTopWritten);
            }
            case kTopWritten: return top_written();
            case kTopFound: {
                aim(true, kToList);
                if (found_key < left_last_key) pass.last_key = found_key;
                step = kFinish;
                return kPass;
            }
            default: return finish();
        }
    }

    __device__ Needs top_listed() {
        leads_order = fits();
        if (is_set(kUnranked)) return go(kTopWritten);
        u64 key = key_of(token, logit);
        if (leads_order && listed > 0 && key <= memory.list[listed - 1]) {
            rank = 1 + memory.place_in_list(listed, key);
            return go(kTopWritten);
        }
        // Before a token without a chance stand all that have one and, of its kind, those with smaller ids: that is all
        // smaller ids, and the larger ones with a chance.
        aim(true, kToTotal, has_chance(logit) ? kByDistance : kFromOrigin);
        pass.need = 0;
        pass.last_key = has_chance(logit) ? key - 1 : kLastKey;
        pass.origin = token;
        step = kRanked;
        return kPass;
    }

    __device__ Needs top_written() {
        if (leads_order) {
            bool complete = kind != kChunks || left_need == 0 || memory.left_in_list(left(), listed) >= top_n();
            if (complete) return go(kFinish);
        }
        // Masses are not strictly ordered like logits, so a token that is left may stand behind one that min-p cut.
        return top_n() > 0 ? search(top_n(), true, kTopFound) : go(kFinish);
    }

    __device__ Needs finish() {
        bool fit = fits();
        bool leader = passes.team.leads();
        u32 count = fit ? memory.write_top(left(), listed, top_n(), leader ? reported() : nullptr) : 0;
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
