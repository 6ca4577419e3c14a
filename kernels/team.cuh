// The blocks that work on one row: a barrier for them, and a place to bring results together.
//
// Work goes in phases. In a phase each block adds to the current exchange; `sync` ends the phase and gives every block
// the completed exchange, from which all of them go on to the same decision. Only integers are added, so the order in
// which blocks arrive cannot be seen.
#pragma once
#include "params.cuh"

// One switch for what Hopper alone has: the blocks of a team are a cluster there. The plain twin is a barrier in global
// memory, for which the host has to launch all blocks at once (a cooperative launch).
#ifndef CROUPIER_CLUSTER
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CROUPIER_CLUSTER 1
#else
#define CROUPIER_CLUSTER 0
#endif
#endif

struct Exchange {
    // Added to by all blocks; zero when a phase begins.
    u64 bins[kBins];
    u64 sum;
    u64 best;  // the largest inverted key
    u32 raw_max;
    u32 flags;
    u32 count;
    u32 found;  // a token and 1
    // Each place is written by one block.
    u64 chunk_sums[kMaxChunks];
    u64 list[kListed];
};
constexpr u32 kZeroedWords = kBins + 4;

// Global memory of a team. All zero before the first launch, and again after each.
struct Scratch {
    u32 arrived;
    u32 left;
    u64 unused;
    Exchange exchanges[3];
};
static_assert(sizeof(Exchange) == 13344, "shared with the host");
static_assert(sizeof(Scratch) == 16 + 3 * sizeof(Exchange), "shared with the host");

struct Team {
    Scratch* scratch;
    u32 rank;
    u32 size;
    u32 phase;

    __device__ explicit Team(Scratch* all) : scratch(all + blockIdx.y), rank(blockIdx.x), size(gridDim.x), phase(0) {}

    __device__ bool leads() const { return rank == 0; }
    __device__ Exchange& exchange() const { return scratch->exchanges[phase % 3]; }

    // Ends the phase.
    __device__ const Exchange& sync() {
        const Exchange& completed = exchange();
        barrier();
        // Nobody reads the phase before any more, and it is used again after the next barrier.
        if (leads()) clear(scratch->exchanges[(phase + 2) % 3]);
        ++phase;
        return completed;
    }

    // Leaves everything zero for the next launch.
    __device__ void end() {
        barrier();
        if (leads()) clear(scratch->exchanges[(phase + 2) % 3]);
        if (threadIdx.x == 0 && size > 1 && atomicAdd(&scratch->left, 1u) == size - 1) {
            // Every block is past its last barrier.
            scratch->arrived = 0;
            scratch->left = 0;
        }
    }

  private:
    __device__ static void clear(Exchange& exchange) {
        u64* words = exchange.bins;
        for (u32 i = threadIdx.x; i < kBins; i += kThreads) words[i] = 0;
        if (threadIdx.x == 0) {
            exchange.sum = 0;
            exchange.best = 0;
            exchange.raw_max = 0;
            exchange.flags = 0;
            exchange.count = 0;
            exchange.found = 0;
        }
    }

    __device__ void barrier() const {
        if (size == 1) {
            __syncthreads();
            return;
        }
#if CROUPIER_CLUSTER
        cluster_barrier();
#else
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(&scratch->arrived, 1u);
            while (*(volatile u32*)&scratch->arrived < size * (phase + 1)) __nanosleep(20);
            __threadfence();
        }
        __syncthreads();
#endif
    }

#if CROUPIER_CLUSTER && !defined(CROUPIER_EMULATOR)
    // Releases and acquires all memory within the cluster, global memory too.
    __device__ static void cluster_barrier() {
        asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    }
#endif
};
