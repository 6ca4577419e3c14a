// Samples or scores rows: raw logprobs, masks, bias, penalties, temperature, top-k, top-p, min-p, draw, report. The
// specification is src/sampling/mod.rs; every bit of a result is compared with it.
//
// Grid: (blocks of a team, teams). A team is the blocks that work on one row. Each takes rows in turn, from `first` up to `rows`.
// Read params.cuh (what comes in and goes out, and the words used here), numbers.cuh, team.cuh, row.cuh, list.cuh, pass.cuh,
// search.cuh, steps.cuh and what they include, then this file; weigh.cuh for verification, spread.cuh for rows of a draft model.
#include "spread.cuh"
#include "steps.cuh"
#include "weigh.cuh"

// Rows differ in what they need, so each row decides at run time. All blocks of a team reach the same decision.
template <class Element>
struct Kernel {
    const RowMemory& row_memory;
    const ListMemory& list_memory;
    Team& team;
    const u8* inputs;
    u8* outputs;
    u32 rows;
    u32 cached_vectors;

    struct Scan {
        u64 best;  // inverted key of the first adjusted token; 0 if none is left
        u64 group;  // the largest logits of one of the team's groups of threads, if they are asked for
        u32 raw_max;
        u32 status;
    };

    // Samples the row whose job is at `place`. Afterwards the job of the team's next row, if there is one, is at the other place.
    __device__ void run(u32 at, u32 place) {
        const RowJob& job = row_memory.job(place);
        RowResult& result = reinterpret_cast<RowResult*>(outputs)[at];
        Row<Element> row(row_memory, job, inputs, team, cached_vectors);
        Scan scan = look(row, at, place);
        if (scan.status != kOk) {
            // The group's logits are not needed here, but their read has to be over before the block that has them ends, so they
            // are compared. No group is all ones, since no adjusted logit is NaN.
            u32 status = __any_sync(kAllLanes, scan.group == ~0ull) ? kBroken : scan.status;
            if (team.leads() && threadIdx.x == 0) result = RowResult{0, 0, 0, status, 0, 0.0f, 0.0f, 0, 0};
            return;
        }
        Passes<Element> passes{list_memory, row, team};
        Machine<Element> machine{list_memory, passes, job, outputs, result, ~scan.best, scan.raw_max};
        machine.bound_first(scan.group);
        machine.run();
    }

    __device__ bool has_next(u32 at) const { return at + gridDim.y < rows; }
    __device__ const RowJob* jobs() const { return reinterpret_cast<const RowJob*>(inputs); }

    // The first look, which is the first pass over a row. It finds what is wrong with the row and its first token, and keeps the
    // delegates: the largest untouched logit that each thread has in each chunk. A token is touched if it has an adjust.
    __device__ Scan look(Row<Element>& row, u32 at, u32 place) {
        float raw_max = minus_infinity(), best_delegate = minus_infinity();
        u32 best_chunk = row.first_chunk;
        row.mark_touched();
        u32 touching = row.touching(), above = 0;
#pragma unroll 1
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            uint4 values[Row<Element>::kVectors];
            float x[kPerThread];
            row.load_first(chunk, values);
            row.widen(chunk, values, x);
            float delegate = largest(x);
            raw_max = max_or_nan(raw_max, delegate);
            // Few threads have touched tokens, and in few chunks.
            if (touching >> (chunk - row.first_chunk) & 1) {
                row.hide_touched(chunk, x);
                float hidden = largest(x);
                above |= (u32)(hidden < delegate) << (chunk - row.first_chunk);
                delegate = hidden;
            }
            row.set_delegate(chunk, delegate);
            // Chunks ascend, so the first of equal tokens stays.
            if (delegate > best_delegate) {
                best_delegate = delegate;
                best_chunk = chunk;
            }
        }
        row.set_above(above);
        // Copies the next row's job. After the loop nothing in this row waits for it, and a barrier follows before it is read.
        if (has_next(at)) row_memory.bring(jobs()[at + gridDim.y], 1 - place);
        bool has_untouched = !row.is_listed_only() && has_chance(best_delegate);
        u32 own = has_untouched ? ascending(best_delegate) : 0, first = own, raw = ascending(raw_max);
        bool asks_groups = Machine<Element>::asks_groups(row.job, team);
        if (asks_groups) bring_groups(own, raw);
        list_memory.block.max_of_two(first, raw);
        // Only threads that may have the first token report it.
        if (own > 0 && own == first) team.bring_best(~key_of(first_of(row, best_chunk, best_delegate), best_delegate));
        u32 least = first;
        row.each_touched([&](const Touched& touched, u32) {
            if (!has_chance(touched.x) || ascending(touched.x) < least) return;
            least = ascending(touched.x);
            team.bring_best(~key_of(touched.token, touched.x));
        });
        return agree(raw, asks_groups);
    }

    // Groups of a warp's lanes report their largest logits: adjusted, 0 if none has a chance, and as sent.
    __device__ void bring_groups(u32 own, u32 raw) const {
        u32 of_warp = team.block_groups() / kWarps, lane = threadIdx.x % kWarp;
#pragma unroll 1
        for (u32 far = of_warp; far < kWarp; far *= 2) {
            u32 other = __shfl_xor_sync(kAllLanes, own, far), other_raw = __shfl_xor_sync(kAllLanes, raw, far);
            own = other > own ? other : own;
            raw = other_raw > raw ? other_raw : raw;
        }
        if (lane < of_warp) team.bring_group(threadIdx.x / kWarp * of_warp + lane, own, raw);
    }

    // The first of the thread's untouched tokens of a chunk with this logit. Only threads that have the largest logit call it.
    __device__ static u32 first_of(const Row<Element>& row, u32 chunk, float logit) {
        float x[kPerThread];
        row.load_untouched(chunk, x);
        u32 first = 0;
#pragma unroll
        for (u32 k = kPerThread; k-- > 0;) first = x[k] == logit ? k : first;
        return row.token_at(chunk, first);
    }

    // What all blocks of the team have found. As an integer, NaN is above infinity.
    __device__ Scan agree(u32 own_raw, bool asks_groups) {
        if (threadIdx.x == 0) team.bring_raw_max(own_raw);
        team.sync(asks_groups ? team.block_groups() : 0);
        Team::Told told = team.told(asks_groups);
        u32 infinity = ascending(plus_infinity());
        u32 status = told.raw_max > infinity                        ? kNan
                     : told.raw_max == infinity                     ? kPositiveInfinity
                     : told.best == 0                               ? kAllMasked
                     : ascending(logit_of(~told.best)) == infinity  ? kPositiveInfinity
                                                                    : kOk;
        return Scan{told.best, told.group, told.raw_max, status};
    }
};

template <class Element>
__device__ void sample_rows(const u8* inputs, u8* outputs, Scratch* scratch, u32 first, u32 rows, u32 slice_chunks,
                            u32 cached_vectors) {
    Carver memory = carver();
    const ListMemory list_memory(memory);
    const RowMemory row_memory(memory, slice_chunks, cached_vectors);
    Team team(list_memory.boxes, scratch);
    Kernel<Element> kernel{row_memory, list_memory, team, inputs, outputs, rows, cached_vectors};
    u32 place = 0;
    first += blockIdx.y;
    if (first < rows) row_memory.bring(kernel.jobs()[first], place);
#pragma unroll 1
    for (u32 row = first; row < rows; row += gridDim.y) {
        // The job of the row before, whose place the next one takes, is not read any more.
        __syncthreads();
        // Later rows are not prefetched: the rest of a row, which is read again meanwhile, goes first.
        if (row == first) Row<Element>::fetch_slice(row_memory.job(place), inputs, team);
        kernel.run(row, place);
        place = 1 - place;
    }
    team.end();
}

// Weighs rows for verification (weigh.cuh), whose distributions sample_rows has found.
template <class Element>
__device__ void weigh_rows(const u8* inputs, u8* outputs, Scratch* scratch, u32 first, u32 rows, u32 slice_chunks) {
    Carver memory = carver();
    const ListMemory list_memory(memory);
    const RowMemory row_memory(memory, slice_chunks, 0);
    Team team(list_memory.boxes, scratch);
    const RowJob* jobs = reinterpret_cast<const RowJob*>(inputs);
    RowResult* results = reinterpret_cast<RowResult*>(outputs);
    for (u32 at = first + blockIdx.y; at < rows; at += gridDim.y) {
        // The job of the row before is not read any more, nor which of its tokens are touched.
        __syncthreads();
        row_memory.bring(jobs[at], 0);
        __syncthreads();
        const RowJob& job = row_memory.job(0);
        Row<Element>::fetch_slice(job, inputs, team);
        row_memory.bring_draft(inputs);
        Row<Element> row(row_memory, job, inputs, team, 0);
        row.mark_touched();
        __syncthreads();
        Passes<Element> passes{list_memory, row, team};
        Weigher<Element>{passes, row, inputs, row_memory.draft()}.run(results[at]);
    }
    team.end();
}

#define CROUPIER_ARGUMENTS \
    const u8 *inputs, u8 *outputs, Scratch *scratch, u32 first, u32 rows, u32 slice_chunks, [[maybe_unused]] u32 cached_vectors
// In the same places as those above, so that all kernels are called alike.
#define CROUPIER_SPREAD_ARGUMENTS \
    const u8 *inputs, u8 *outputs, [[maybe_unused]] Scratch *scratch, [[maybe_unused]] u32 first, u32 rows, u32 parts, u32 jobs_at
#define CROUPIER_KERNELS(name, Element)                                                                            \
    extern "C" __global__ void __launch_bounds__(kThreads) sample_rows_##name(CROUPIER_ARGUMENTS) {                 \
        sample_rows<Element>(inputs, outputs, scratch, first, rows, slice_chunks, cached_vectors);                 \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads) weigh_rows_##name(CROUPIER_ARGUMENTS) {               \
        weigh_rows<Element>(inputs, outputs, scratch, first, rows, slice_chunks);                                  \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads) spread_rows_##name(CROUPIER_SPREAD_ARGUMENTS) {        \
        spread_rows<Element>(inputs, outputs, rows, parts, jobs_at);                                               \
    }

CROUPIER_KERNELS(f32, F32)
CROUPIER_KERNELS(f16, F16)
CROUPIER_KERNELS(bf16, Bf16)
