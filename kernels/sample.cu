// Samples or scores rows: raw logprobs, masks, bias, penalties, temperature, top-k, top-p, min-p, draw, report. The
// specification is src/sampling/mod.rs; every bit of a result is compared with it.
//
// Grid: (blocks of a team, teams). Each team takes rows in turn, from `first` up to `rows`. Read params.cuh (what comes in and goes
// out), numbers.cuh, team.cuh, row.cuh, list.cuh, pass.cuh, search.cuh, steps.cuh and what they include, then this file; weigh.cuh for verification.
#include "steps.cuh"
#include "weigh.cuh"

// Blocks of two rows are never alike in what they need, so the row decides at run time; all blocks of a team decide alike.
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
        u64 group;  // the largest logits of one of the team's groups, where they are asked for
        u32 raw_max;
        u32 status;
    };

    // The row whose job is at `place`. The job of the team's next row, if there is one, is at the other place afterwards.
    __device__ void run(u32 at, u32 place) {
        const RowJob& job = row_memory.job(place);
        RowResult& result = reinterpret_cast<RowResult*>(outputs)[at];
        Row<Element> row(row_memory, job, inputs, team, cached_vectors);
        Scan scan = look(row, at, place);
        if (scan.status != kOk) {
            // Nobody wants the group's logits here, but their read has to be over before the block that has them leaves. No group is
            // all ones, for no adjusted logit is NaN.
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

    // The first pass over a row: what is wrong with it, its first token, the delegates.
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
            // Few threads have touched tokens, and few chunks.
            if (touching >> (chunk - row.first_chunk) & 1) {
                row.hide_touched(chunk, x);
                float hidden = largest(x);
                above |= (u32)(hidden < delegate) << (chunk - row.first_chunk);
                delegate = hidden;
            }
            row.set_delegate(chunk, delegate);
            // Ascending tokens: of equal ones the first stays.
            if (delegate > best_delegate) {
                best_delegate = delegate;
                best_chunk = chunk;
            }
        }
        row.set_above(above);
        // The next row's job: nothing of this row waits for it behind the loop, and a barrier follows before it is looked at.
        if (has_next(at)) row_memory.bring(jobs()[at + gridDim.y], 1 - place);
        bool has_untouched = !row.is_listed_only() && has_chance(best_delegate);
        u32 own = has_untouched ? ascending(best_delegate) : 0, first = own, raw = ascending(raw_max);
        bool asks_groups = Machine<Element>::asks_groups(row.job, team);
        if (asks_groups) bring_groups(own, raw);
        list_memory.block.max_of_two(first, raw);
        // Only those who may have the first token tell of it.
        if (own > 0 && own == first) team.bring_best(~key_of(first_of(row, best_chunk, best_delegate), best_delegate));
        u32 least = first;
        row.each_touched([&](const Touched& touched, u32) {
            if (!has_chance(touched.x) || ascending(touched.x) < least) return;
            least = ascending(touched.x);
            team.bring_best(~key_of(touched.token, touched.x));
        });
        return agree(raw, asks_groups);
    }

    // Groups of a warp's lanes tell their largest logits: adjusted, 0 where none has a chance, and as sent.
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

    // The first of the thread's untouched tokens of a chunk with this logit. Only those who have the largest look for it.
    __device__ static u32 first_of(const Row<Element>& row, u32 chunk, float logit) {
        float x[kPerThread];
        row.load_untouched(chunk, x);
        u32 first = 0;
#pragma unroll
        for (u32 k = kPerThread; k-- > 0;) first = x[k] == logit ? k : first;
        return row.token_at(chunk, first);
    }

    // What all blocks of the team have found. NaN is above infinity.
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
        // Nobody looks at the job of the row before any more, whose place the next one takes.
        __syncthreads();
        // Later rows are not fetched ahead of what reads them: what else is read meanwhile, the rest of a row again, goes before.
        if (row == first) Row<Element>::fetch_slice(row_memory.job(place), inputs, team);
        kernel.run(row, place);
        place = 1 - place;
    }
    team.end();
}

// Weighs what rows leave, for verification: weigh.cuh. Their distributions are those that the other kernel found.
template <class Element>
__device__ void weigh_rows(const u8* inputs, u8* outputs, Scratch* scratch, u32 first, u32 rows, u32 slice_chunks) {
    Carver memory = carver();
    const ListMemory list_memory(memory);
    const RowMemory row_memory(memory, slice_chunks, 0);
    Team team(list_memory.boxes, scratch);
    const RowJob* jobs = reinterpret_cast<const RowJob*>(inputs);
    RowResult* results = reinterpret_cast<RowResult*>(outputs);
    for (u32 at = first + blockIdx.y; at < rows; at += gridDim.y) {
        // Nobody looks at the job of the row before any more, nor at which of its tokens are touched.
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
#define CROUPIER_KERNELS(name, Element)                                                                            \
    extern "C" __global__ void __launch_bounds__(kThreads) sample_rows_##name(CROUPIER_ARGUMENTS) {                 \
        sample_rows<Element>(inputs, outputs, scratch, first, rows, slice_chunks, cached_vectors);                 \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads) weigh_rows_##name(CROUPIER_ARGUMENTS) {               \
        weigh_rows<Element>(inputs, outputs, scratch, first, rows, slice_chunks);                                  \
    }

CROUPIER_KERNELS(f32, F32)
CROUPIER_KERNELS(f16, F16)
CROUPIER_KERNELS(bf16, Bf16)
