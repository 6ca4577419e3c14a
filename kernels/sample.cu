// Samples or scores rows: raw logprobs, masks, bias, penalties, temperature, top-k, top-p, min-p, draw, report. The
// specification is src/sampling/mod.rs; every bit of a result is compared with it.
//
// Grid: (blocks of a team, teams). Each team takes rows in turn. Read params.cuh (what comes in and goes out), numbers.cuh,
// team.cuh, row.cuh, list.cuh, pass.cuh, search.cuh, steps.cuh, then this file; weigh.cuh for verification.
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
    u32 cached_vectors;

    struct Scan {
        u64 best;  // inverted key of the first adjusted token; 0 if none is left
        u32 raw_max;
        u32 status;
    };

    __device__ void run(const RowJob& job, RowResult& result) {
        Row<Element> row(row_memory, job, inputs, team, cached_vectors);
        Scan scan = look(row);
        if (scan.status != kOk) {
            if (team.leads() && threadIdx.x == 0) result = RowResult{0, 0, 0, scan.status, 0, 0.0f, 0.0f, 0, 0};
            return;
        }
        Passes<Element> passes{list_memory, row, team};
        Machine<Element> machine{list_memory, passes, job, outputs, result, ~scan.best, scan.raw_max};
        machine.run(&team.exchange());
    }

    // The first pass over a row: what is wrong with it, its first token, the delegates.
    __device__ Scan look(const Row<Element>& row) {
        bool nan = false;
        float raw_max = minus_infinity(), untouched_max = minus_infinity();
        u32 untouched_token = 0;
        u64 best = 0;
        for (u32 chunk = row.first_chunk; chunk < row.end_chunk; ++chunk) {
            uint4 values[Row<Element>::kVectors];
            row.load_first(chunk, values);
            float delegate = minus_infinity();
            row.each_loaded(chunk, values, [&](u32 token, float x, bool touched) {
                nan |= x != x;
                raw_max = fmaxf(raw_max, x);
                if (touched) return;
                delegate = fmaxf(delegate, x);
                // Ascending tokens: of equal ones the first stays.
                if (x > untouched_max) {
                    untouched_max = x;
                    untouched_token = token;
                }
            });
            row_memory.delegates[(chunk - row.first_chunk) * kThreads + threadIdx.x] = delegate;
            row.each_touched(chunk, [&](u32 token, float, float x) {
                u64 inverted = has_chance(x) ? ~key_of(token, x) : 0;
                best = inverted > best ? inverted : best;
            });
        }
        if (!row.is_listed_only() && has_chance(untouched_max)) {
            u64 inverted = ~key_of(untouched_token, untouched_max);
            best = inverted > best ? inverted : best;
        }
        return agree(best, raw_max, nan);
    }

    __device__ Scan agree(u64 best, float raw_max, bool nan) {
        best = warp_max(best);
        u32 raw = (u32)warp_max(ascending(raw_max));
        bool any_nan = __any_sync(kAllLanes, nan);
        Exchange& exchange = team.exchange();
        if (threadIdx.x % kWarp == 0) {
            atomicMax(&exchange.best, best);
            atomicMax(&exchange.raw_max, raw);
            if (any_nan) atomicOr(&exchange.flags, 1u);
        }
        const Exchange& all = team.sync();
        u32 infinity = ascending(plus_infinity());
        u32 status = all.flags != 0                                  ? kNan
                     : all.raw_max == infinity                       ? kPositiveInfinity
                     : all.best == 0                                 ? kAllMasked
                     : ascending(logit_of(~all.best)) == infinity    ? kPositiveInfinity
                                                                     : kOk;
        return Scan{all.best, all.raw_max, status};
    }
};

template <class Element>
__device__ void sample_rows(const u8* inputs, u8* outputs, Scratch* scratch, u32 rows, u32 cached_vectors) {
    Carver memory = carver();
    const ListMemory list_memory(memory);
    const RowMemory row_memory(memory, cached_vectors);
    Team team(scratch);
    Kernel<Element> kernel{row_memory, list_memory, team, inputs, outputs, cached_vectors};
    const RowJob* jobs = reinterpret_cast<const RowJob*>(inputs);
    RowResult* results = reinterpret_cast<RowResult*>(outputs);
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) kernel.run(jobs[row], results[row]);
    team.end();
}

// Weighs what rows leave, for verification: weigh.cuh. Their distributions are those that the other kernel found.
template <class Element>
__device__ void weigh_rows(const u8* inputs, u8* outputs, Scratch* scratch, u32 rows) {
    Carver memory = carver();
    const ListMemory list_memory(memory);
    const RowMemory row_memory(memory, 0);
    Team team(scratch);
    const RowJob* jobs = reinterpret_cast<const RowJob*>(inputs);
    RowResult* results = reinterpret_cast<RowResult*>(outputs);
    for (u32 at = blockIdx.y; at < rows; at += gridDim.y) {
        Row<Element> row(row_memory, jobs[at], inputs, team, 0);
        Passes<Element> passes{list_memory, row, team};
        Weigher<Element>{passes, row, inputs}.run(results[at]);
    }
    team.end();
}

// Two blocks on a multiprocessor may have 64 registers a thread; without that the compiler aims at three, and spills.
#define CROUPIER_KERNELS(name, Element)                                                                            \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                         \
        sample_rows_##name(const u8* inputs, u8* outputs, Scratch* scratch, u32 rows, u32 cached_vectors) {        \
        sample_rows<Element>(inputs, outputs, scratch, rows, cached_vectors);                                      \
    }                                                                                                              \
    extern "C" __global__ void __launch_bounds__(kThreads, 2)                                                      \
        weigh_rows_##name(const u8* inputs, u8* outputs, Scratch* scratch, u32 rows, u32) {                        \
        weigh_rows<Element>(inputs, outputs, scratch, rows);                                                       \
    }

CROUPIER_KERNELS(f32, F32)
CROUPIER_KERNELS(f16, F16)
CROUPIER_KERNELS(bf16, Bf16)
