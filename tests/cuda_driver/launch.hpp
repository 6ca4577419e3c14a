// Between the driver and the kernels it runs.
#pragma once
#include <vector>

#include "driver.hpp"

namespace driver {

// What a kernel is told: the parameters of kernels/sample.cu, in order.
struct Arguments {
    Address inputs, outputs, scratch;
    unsigned first, rows, slice_chunks, cached_vectors;  // from row `first` up to row `rows`
};

struct Grid {
    unsigned team_size, teams, threads, shared_bytes;
};

struct Kernel {
    const char* name;
    bool has_clusters;
    unsigned threads;  // of a block, as it was compiled
    std::function<void(const Grid&, const Arguments&)> run;
};

// As compiled for clusters of blocks, and for blocks that meet in global memory. kernels.cpp is compiled for each.
std::vector<Kernel> clustered_kernels();
std::vector<Kernel> cooperative_kernels();

}  // namespace driver
