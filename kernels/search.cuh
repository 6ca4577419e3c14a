// Searches in the order of a row's tokens, as steps: each step looks at what the last pass found and sets up the next pass. A
// search ends with the key (a token's place in the order) at which a weight is reached, or with a list of the first tokens, and
// goes on to the step `after`. A delegate is the largest untouched logit that a thread has in a chunk.
#pragma once
#include "find.cuh"

enum Step {
    // draw_step
    kBegin, kBothListed, kTopKGrouped, kTopKListed, kTopKFound, kTopPWeighed, kTopPBinned, kTopPListed, kFilter, kTopPFound,
    kWeighed, kTokenFound, kDrawn, kRawListed, kRawWeighed,
    // report_step
    kReport, kTopGrouped, kTopListed, kRanked, kTopWritten, kTopFound, kFinish, kEnd,
    // search_step: ends with `found_key`, or with the list in order, and goes on to `after`
    kSearch, kSearchBinned, kSearchListed, kSearchTied, kSearchFound, kFirstCounted
};

// What a step needs done before the next one, in the order of the names below: nothing; that `pass` runs and its list, if it makes
// one, is put in order; that the delegates are counted; that `found` becomes the token at which the weights of the last pass exceed
// `point`; that the second list of the last pass is put in order. The code for each is in the kernel once, however many steps need
// it.
enum Needs { kNoPass, kPass, kDelegates, kToken, kOrder };

template <class Element>
struct Search {
    const ListMemory& memory;
    const Passes<Element>& passes;

    u64 left_last_key = kLastKey;  // what masks and filters have left so far: tokens up to this key
    u64 left_need = 0;             // with at least this mass
    Pass pass{};  // runs next, or ran last; its view, maximum and scale are those of the tokens that are left
    Step step = kBegin;
    Step after = kEnd;

    // search: the weight to reach, from the range's first key on. filter: the mass that top-p has to reach; 0 for its share of the
    // list.
    u64 missing = 0;
    u64 found_key = 0;
    u32 low = 0, high = 0;  // search: the range
    bool ties_count = false;  // search: each of the equal tokens weighs 1
    // list_first: how many tokens; kWaits while the second list of the last phase waits.
    u32 wanted = 0;
    static constexpr u32 kWaits = ~0u;
    u32 listed = 0;         // length of the list; kListed + 1 if it did not fit
    u32 begins = 0;         // where the list begins; no other list follows one that has waited
    u64 point = 0;
    u32 found = 0;    // a token, or until its list is there the bin of mass in which top-p is reached
    u64 weighed = 0;  // sum of the last pass into chunks or the total; or the mass before that bin

    __device__ bool fits() const { return listed <= kListed; }

    __device__ Needs go(Step next) {
        step = next;
        return kNoPass;
    }

    // Sets up a pass over the tokens that are left.
    __device__ void aim(bool counts, Sink sink, Binning binning = kByDistance) {
        pass.first_key = 0;
        pass.last_key = left_last_key;
        pass.need = left_need;
        pass.counts = counts;
        pass.sink = sink;
        pass.with_total = false;
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

    // Sums the masses of the tokens that are left; by chunk, if a token is to be found with the sums.
    __device__ Needs weigh(Sink sink, Step next) {
        aim(false, sink);
        step = next;
        return kPass;
    }

    // Finds the token at which the running sum of weights exceeds a point.
    __device__ Needs find(u64 at, Step next) {
        point = at;
        step = next;
        return kToken;
    }

    // Lists the first `count` tokens of the order or a few more, whether or not they are left.
    __device__ Needs list_first(u32 count, Step next) {
        wanted = count;
        listed = 0;
        after = next;
        if (count == 0) return go(next);
        step = kFirstCounted;
        return kDelegates;
    }

    // Lists the tokens of the order down to a value, whether or not they are left.
    __device__ Needs list_down_to(u32 floor, Step next) {
        aim(true, kToList);
        pass.need = 0;
        pass.last_key = (u64)~floor << 32 | ~0u;
        step = next;
        return kPass;
    }

    // The same for the row as sent, all of which is weighed in the same phase.
    __device__ Needs list_and_weigh(u32 floor, Step next) {
        Needs needs = list_down_to(floor, next);
        pass.with_total = true;
        return needs;
    }

    // Lists the tokens of the order down to the end of a bin by mass, or a few more. `pass` has filled the bins.
    __device__ Needs list_bins(u32 bin, Step next) {
        float x = pass.max + ((float)bin + 1.0f) / kBinsOfExponent / pass.scale;
        // A token of these bins comes before any token of a later bin.
        bool is_beyond = x > minus_infinity() && pass.bin_of(x) > bin;
        aim(true, kToList);
        pass.last_key = is_beyond ? (u64)descending(x) << 32 | ~0u : kLastKey;
        step = next;
        return kPass;
    }

    // Finds the key at which the tokens that are left reach a weight.
    __device__ Needs search(u64 weight, bool counts, Step next) {
        begin_search(weight, counts, kByDistance, next);
        return go(kSearch);
    }

    // The same by mass, within the bin by mass in which the weight is known to be reached.
    __device__ Needs search_in(u64 weight, const Place& bin, Step next) {
        begin_search(weight, false, kByExponent, next);
        return narrow_into(bin);
    }

    __device__ Needs search_step() {
        switch (step) {
            case kSearch: {
                set_range();
                pass.sink = kToBins;
                step = kSearchBinned;
                return kPass;
            }
            case kSearchBinned: return narrow();
            case kSearchListed: {
                if (!fits()) return go(kSearch);
                found_key = memory.key_reaching(pass, listed, missing);
                return go(after);
            }
            case kSearchTied: {
                u64 index = (missing - 1) / each_tie();
                if (index < weighed) return find(index, kSearchFound);
                found_key = kLastKey;
                return go(after);
            }
            case kSearchFound: {
                found_key = key_of(found, from_ascending(low));
                return go(after);
            }
            // If n threads have a delegate in the bins up to some bin, then n tokens are in them, and only those threads have to
            // look again (delegates: Dr. Top-k, arXiv 2109.08219).
            default: return list_down_to(passes.floor_of_delegates(pass.max, wanted), after);
        }
    }

  private:
    __device__ void begin_search(u64 weight, bool counts, Binning binning, Step next) {
        missing = weight;
        aim(counts, kToBins, binning);
        low = ~(u32)(kLastKey >> 32);
        high = ascending(pass.max);
        after = next;
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
    __device__ Needs narrow() {
        Place place = memory.block.locate(kBins, missing - 1, [&](u32 bin) -> u64 {
            return pass.counts ? passes.team.count(bin) : passes.team.bin(bin);
        });
        if (place.index == kBins) {
            found_key = kLastKey;
            return go(after);
        }
        return narrow_into(place);
    }

    __device__ Needs narrow_into(const Place& place) {
        missing -= place.before;
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
        if (place.weight > largest * kListed) return go(kSearch);
        pass.sink = kToList;
        step = kSearchListed;
        return kPass;
    }

    // Makes the values of one bin the range. Larger values are in smaller bins.
    __device__ void narrow_to(u32 bin) {
        if (pass.binning == kByValue) {
            u64 first = (u64)bin << pass.shift, end = (u64)(bin + 1) << pass.shift;
            low = end <= pass.origin - low ? pass.origin - (u32)end + 1 : low;
            high = pass.origin - (u32)first;
            return;
        }
        // One half of each warp looks for the first value in the bin or above it, the other for the first above it.
        bool is_upper = threadIdx.x % kWarp >= kWarp / 2;
        u32 bound = is_upper ? bin : bin + 1;
        u32 found = half_warp_first(is_upper ? low + 1 : low, is_upper ? high + 1 : high,
                                    [&](u32 value) { return pass.bin_of_value(value) < bound; });
        low = __shfl_sync(kAllLanes, found, 0);
        high = __shfl_sync(kAllLanes, found, kWarp - 1) - 1;
    }
};
