// What is done with a list of tokens in shared memory. A token is listed by its key, a number that gives its place in the order of
// the row. All threads of a block call the functions and get the same result, unless a comment says otherwise.
#pragma once
#include "aim.cuh"
#include "team.cuh"

struct ListMemory {
    Block block;
    Boxes boxes;
    Shared<u64> list;    // keys in order
    // Values that the first tokens reach, adjusted and as sent, if groups of threads tell them (Passes::find_floors).
    Shared<u32> floors;
    // The length of a second list that waits in the upper half of `list`, in order; kNoneWaits if there is none.
    Shared<u32> waiting;
    // The masses of the tokens of `list`. Also holds a list that is yet to be put in order, and what a pass notes before it lists.
    Shared<u64> masses;
    static constexpr u32 kNoneWaits = ~0u;

    // Lists of up to this many tokens are short: they are put in order by comparing each token with all others, and one warp weighs
    // and cuts them. Longer lists are sorted, weighed by the block, and drawn from by bins. Short lists are padded to this length,
    // so that four reads at a time need no test.
    static constexpr u32 kCounted = 128;
    static_assert(kCounted % (4 * kWarp) == 0 && kCounted <= kHalf, "groups of lanes read whole fours");

    __device__ explicit ListMemory(Carver& carver)
        : block(carver), boxes(carver), list(carver.take<u64>(kListed)), floors(carver.take<u32>(2)),
          waiting(carver.take<u32>(1)), masses(carver.take<u64>(kListed)) {}

    __device__ void list_one(u64 key) const {
        __syncthreads();
        if (threadIdx.x == 0) list[0] = key;
        __syncthreads();
    }

    __device__ void weigh_list(const Pass& pass, u32 listed) const {
#pragma unroll 1
        for (u32 i = threadIdx.x; i < listed; i += kThreads) masses[i] = pass.mass(logit_of(list[i]));
        __syncthreads();
    }

    // The place at which the first `count` entries reach what `need_of` asks of their sum. If they do not: `count`, with the sum
    // before it.
    template <class Need>
    __device__ Place reach(u32 count, Need need_of) const {
        return block.locate_by(count, [&](u64 sum) { return need_of(sum) - 1; }, [&](u32 i) { return masses[i]; });
    }

    __device__ u64 list_total(u32 count) const {
        u64 own = 0;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += kThreads) own += masses[i];
        return block.sum(own);
    }

    // Sets masses below `need` to 0.
    __device__ void cut_list(u32 count, u64 need) const {
        __syncthreads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < count; i += kThreads) {
            if (masses[i] < need) masses[i] = 0;
        }
        __syncthreads();
    }

    // What top-p and min-p leave of a short list: how many tokens, 0 if top-p is not reached, and the sum of their masses. The
    // first warp does it alone, while the others wait at one barrier. Afterwards all further masses up to kCounted are 0, and
    // `block.place` has no drawn token.
    struct Cut {
        u32 kept;
        u64 total;
    };
    template <class Need>
    __device__ Cut cut_short(const Pass& pass, u32 count, bool cuts, Need need_of, u64 least) const {
        constexpr u32 kEach = kCounted / kWarp;
        if (threadIdx.x < kWarp) {
            u32 first = threadIdx.x * kEach;
            u64 own[kEach], sum = 0;
#pragma unroll
            for (u32 i = 0; i < kEach; i += 2) {
                Two keys = two_of(list, first + i);
                // Without a branch, so that they are computed in parallel.
                own[i] = pass.mass(first + i < count ? logit_of(keys.a) : minus_infinity());
                own[i + 1] = pass.mass(first + i + 1 < count ? logit_of(keys.b) : minus_infinity());
                sum += own[i] + own[i + 1];
            }
            u64 before = warp_scan_here(sum), point = need_of(__shfl_sync(kAllLanes, before, kWarp - 1)) - 1;
            before -= sum;
            // Counts the tokens up to the one that reaches the point.
            u32 kept = 0;
#pragma unroll
            for (u32 i = 0; i < kEach; ++i) {
                before += own[i];
                kept += before <= point;
            }
            kept = __reduce_add_sync(kAllLanes, kept) + 1;
            kept = !cuts ? count : kept <= kCounted ? kept : 0;
            sum = 0;
#pragma unroll
            for (u32 i = 0; i < kEach; ++i) {
                own[i] = first + i < kept && own[i] >= least ? own[i] : 0;
                masses[first + i] = own[i];
                sum += own[i];
            }
            sum = warp_sum(sum);
            if (threadIdx.x == 0) {
                block.partial[0] = sum;
                block.partial[1] = kept;
                block.place[0] = Place{~0u, 0, 0};
            }
        }
        __syncthreads();
        return Cut{(u32)(u64)block.partial[1], block.partial[0]};
    }

    // The token whose mass spans the point, where tokens come in the order of their ids. `bins` are free for use: they are cleared
    // here, and again by whoever fills them next.
    __device__ u32 draw_from_list(u32 count, u64 point, Histogram bins, u32 vocab_size) const {
        if (count > kCounted) return draw_by_bins(count, point, bins, vocab_size);
        __syncthreads();
        if (threadIdx.x == 0) block.place[0] = Place{~0u, 0, 0};
#pragma unroll 1
        for (u32 i = count + threadIdx.x; i < kCounted; i += kThreads) masses[i] = 0;
        __syncthreads();
        return draw_short(count, point);
    }
    // The same for a short list that `cut_short` has cut.
    __device__ u32 draw_short(u32 count, u64 point) const { return draw_counting(list, masses, block.place, count, point); }

    // Puts the keys that wait in `masses` into the list, in order.
    __device__ void put_in_order(u32 listed) const {
        if (listed <= kCounted) order_counting(list, masses, listed);
        else if (listed <= kThreads) sort<1>(list, masses, listed);
        else sort<kListed / kThreads>(list, masses, listed);
    }

    // The same for two short lists at once. The second is in the upper half, and waits there.
    __device__ void put_two_in_order(u32 first, u32 second) const { order_two(list, masses, first, second); }

    // The key at which the list reaches a weight; kLastKey if it does not.
    __device__ u64 key_reaching(const Pass& pass, u32 listed, u64 need) const {
        auto weight = [&](u32 i) { return pass.weight(token_of(list[i]), logit_of(list[i])); };
        Place place = block.locate(listed, need - 1, weight);
        return place.index < listed ? list[place.index] : kLastKey;
    }

    // How many keys of the list that begins at `begin` come before `key`. For a short list, only the first warp gets the result.
    __device__ u32 place_in_list(u32 begin, u32 listed, u64 key) const {
        if (listed <= kCounted && threadIdx.x >= kWarp) return 0;
        return count_in_list(begin, listed, [&](u64 of_list) { return of_list < key; });
    }

    __device__ u32 left_in_list(const Pass& left, u32 begin, u32 listed) const {
        return count_in_list(begin, listed, [&](u64 key) { return left.keeps(token_of(key), logit_of(key)); });
    }

    // Writes the first `most` tokens of the list that are left, in order, and returns their number. For a short list, only the
    // first warp gets it.
    __device__ u32 write_top(const Pass& left, u32 begin, u32 listed, u32 most, ReportedToken* to) const {
        if (listed <= kCounted) return threadIdx.x < kWarp ? write_short_top(left, begin, listed, most, to) : 0;
        u32 share = (listed + kThreads - 1) / kThreads;
        u32 from = threadIdx.x * share < listed ? threadIdx.x * share : listed;
        u32 end = from + share < listed ? from + share : listed;
        u64 own = 0, total;
#pragma unroll 1
        for (u32 i = from; i < end; ++i) own += left.keeps(token_of(list[i]), logit_of(list[i]));
        u64 place = block.sum_before(own, total);
#pragma unroll 1
        for (u32 i = from; to != nullptr && i < end && place < most; ++i) {
            u64 key = list[i];
            if (left.keeps(token_of(key), logit_of(key))) to[place++] = ReportedToken{token_of(key), logit_of(key)};
        }
        return total < most ? (u32)total : most;
    }

  private:
    template <class Is>
    __device__ u32 count_in_list(u32 begin, u32 listed, Is is_counted) const {
        u32 own = 0;
        bool few = listed <= kCounted;
#pragma unroll 1
        for (u32 i = few ? threadIdx.x % kWarp : threadIdx.x; i < listed; i += few ? kWarp : kThreads) own += is_counted(list[begin + i]);
        return few ? __reduce_add_sync(kAllLanes, own) : (u32)block.sum(own);
    }

    __device__ u32 write_short_top(const Pass& left, u32 begin, u32 listed, u32 most, ReportedToken* to) const {
        u32 written = 0;
#pragma unroll 1
        for (u32 i = threadIdx.x; i - threadIdx.x < listed && written < most; i += kWarp) {
            u64 key = i < listed ? (u64)list[begin + i] : ~0ull;
            bool is_left = i < listed && left.keeps(token_of(key), logit_of(key));
            u32 lanes = __ballot_sync(kAllLanes, is_left), place = written + __popc(lanes & ((1u << threadIdx.x) - 1));
            if (to != nullptr && is_left && place < most) to[place] = ReportedToken{token_of(key), logit_of(key)};
            written += __popc(lanes);
        }
        return written < most ? written : most;
    }

    // Calls f(i, first, step) for each of n entries, at most kCounted. Each entry gets `step` neighbouring lanes, as many as there
    // are threads for, each with a different `first` below `step`. Whole warps take part, so f is called for padding too.
    template <class F>
    __device__ static void each_in_groups(u32 n, u32 thread, u32 threads, F f) {
        // The largest power of two of lanes, up to a warp, with which n entries fit the threads.
        int bits = __clz(n - 1) - __clz(threads) - 1;
        bits = bits < 0 ? 0 : bits < 5 ? bits : 5;
#pragma unroll 1
        for (u32 base = 0; base < n; base += threads >> bits) {
            f(base + (thread >> bits), thread & ((1u << bits) - 1), 1u << bits);
        }
    }

    template <class T>
    __device__ static T sum_of_group(T value, u32 lanes) {
#pragma unroll 1
        for (u32 bits = lanes / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(kAllLanes, value, bits);
        return value;
    }

    __device__ static void order_counting(Shared<u64> to, Shared<u64> from, u32 listed) {
        order_part(to, from, 0, listed, threadIdx.x, kThreads);
    }

    // Puts two lists in order, each with half of the threads.
    __device__ static void order_two(Shared<u64> to, Shared<u64> from, u32 first, u32 second) {
        constexpr u32 kEach = kThreads / 2;
        bool is_first = threadIdx.x < kEach;
        order_part(to, from, is_first ? 0 : kHalf, is_first ? first : second, threadIdx.x % kEach, kEach);
    }

    // A key's place is the number of smaller keys. The keys are followed by padding, which is smaller than none of them.
    __device__ CROUPIER_ONCE static void order_part(Shared<u64> to, Shared<u64> from, u32 begin, u32 listed, u32 thread, u32 threads) {
#pragma unroll 1
        for (u32 i = listed + thread; i < kCounted; i += threads) {
            in_shared(to)[begin + i] = ~0ull;
            in_shared(from)[begin + i] = ~0ull;
        }
        __syncthreads();
        each_in_groups(listed, thread, threads, [&](u32 i, u32 first, u32 step) {
            u64 key = in_shared(from)[begin + i];
            u32 place = 0;
#pragma unroll 1
            for (u32 j = begin; j < begin + listed; j += 4 * step) {
                Two one = two_of(in_shared(from), j + 2 * first), other = two_of(in_shared(from), j + 2 * (step + first));
                place += (one.a < key) + (one.b < key) + (other.a < key) + (other.b < key);
            }
            place = sum_of_group(place, step);
            if (first == 0 && i < listed) in_shared(to)[begin + place] = key;
        });
        __syncthreads();
    }

    // The entries are followed by those that were cut, or by the padding of a short list. Their masses are 0.
    __device__ CROUPIER_ONCE static u32 draw_counting(Shared<u64> list, Shared<u64> masses, Shared<Place> drawn, u32 count,
                                                      u64 point) {
        each_in_groups(count, threadIdx.x, kThreads, [&](u32 i, u32 first, u32 step) {
            u32 token = token_of(in_shared(list)[i]);
            u64 before = 0;
#pragma unroll 1
            for (u32 j = 0; j < count; j += 2 * step) {
                Two keys = two_of(in_shared(list), j + 2 * first), own = two_of(in_shared(masses), j + 2 * first);
                before += (token_of(keys.a) < token ? own.a : 0) + (token_of(keys.b) < token ? own.b : 0);
            }
            before = sum_of_group(before, step);
            if (first > 0 || i >= count) return;
            u64 own = in_shared(masses)[i];
            if (before <= point && point < before + own) in_shared(drawn)[0] = Place{token, before, own};
        });
        __syncthreads();
        return static_cast<Place>(in_shared(drawn)[0]).index;
    }

    // Sorts the keys in `from` into `to` with Batcher's bitonic network over the next power of two, filled up with keys larger than
    // all. A thread holds kRows places throughout. Steps within a warp are shuffles. The others go through the two arrays in turn:
    // when a thread writes to one again, it is past the barrier after which the other one is read.
    template <u32 kRows>
    __device__ CROUPIER_ONCE static void sort(Shared<u64> to, Shared<u64> from, u32 listed) {
        u32 padded = 2 * kCounted;
        while (padded < listed) padded *= 2;
        u64 keys[kRows], others[kRows];
        // If a pair of keys is in the wrong order for its part of the network, its two holders swap them.
        auto exchange = [&](u32 size, u32 far) {
#pragma unroll
            for (u32 row = 0; row < kRows; ++row) {
                u32 i = row * kThreads + threadIdx.x;
                bool wants_smaller = ((i & size) == 0) == ((i & far) == 0);
                keys[row] = (others[row] < keys[row]) == wants_smaller ? others[row] : keys[row];
            }
        };
        __syncthreads();
#pragma unroll
        for (u32 row = 0; row < kRows; ++row) {
            u32 i = row * kThreads + threadIdx.x;
            keys[row] = i < listed ? (u64)in_shared(from)[i] : ~0ull;
        }
        Shared<u64> between = to, then = from;
#pragma unroll 1
        for (u32 size = 2; size <= padded; size *= 2) {
            u32 far = size / 2;
#pragma unroll 1
            for (; far >= kWarp; far /= 2) {
#pragma unroll
                for (u32 row = 0; row < kRows; ++row) in_shared(between)[row * kThreads + threadIdx.x] = keys[row];
                __syncthreads();
#pragma unroll
                for (u32 row = 0; row < kRows; ++row) {
                    others[row] = in_shared(between)[(row * kThreads + threadIdx.x) ^ far];
                }
                exchange(size, far);
                Shared<u64> last = between;
                between = then;
                then = last;
            }
#pragma unroll 1
            for (; far > 0; far /= 2) {
#pragma unroll
                for (u32 row = 0; row < kRows; ++row) others[row] = __shfl_xor_sync(kAllLanes, keys[row], far);
                exchange(size, far);
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 row = 0; row < kRows; ++row) in_shared(to)[row * kThreads + threadIdx.x] = keys[row];
        __syncthreads();
    }

    // Sums masses over ranges of ids, then over parts of the range that the point is in, until a range is one token: two rounds for
    // up to 2^18 ids, three for more.
    __device__ u32 draw_by_bins(u32 count, u64 point, Histogram bins, u32 vocab_size) const {
        u32 first = 0, bits = 32 - __clz(vocab_size - 1);
        do {
            constexpr u32 kBinBits = 9;
            static_assert(kBins == 1 << kBinBits, "a range is cut into bins");
            u32 span_bits = bits;
            bits = bits > kBinBits ? bits - kBinBits : 0;
            bins.clear(kBins);
#pragma unroll 1
            for (u32 i = threadIdx.x; i < count; i += kThreads) {
                u32 at = token_of(list[i]) - first;
                if (at >> span_bits == 0) bins.add(at >> bits, masses[i]);
            }
            __syncthreads();
            Place place = block.locate(kBins, point, [&](u32 bin) { return bins.get(bin); });
            if (place.index == kBins) return ~0u;
            point -= place.before;
            first += place.index << bits;
        } while (bits > 0);
        return first;
    }
};
