// The interface between the driver and the kernels that it runs.
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
    unsigned threads;  // of a block, as compiled
    std::function<void(const Grid&, const Arguments&)> run;
};

// The kernels for clusters of blocks, and for blocks whose barrier is in global memory. kernels.cpp is compiled for each.
std::vector<Kernel> clustered_kernels();
std::vector<Kernel> cooperative_kernels();

}  // namespace driver
