// The kernels in the emulator (tests/emulator), for teams that are clusters or not. Compiled once for each.

// Two C functions of one name would be the same function, even in different namespaces, so here the kernels are static.
#undef __global__
#define __global__ typedef int Ignored; static

namespace {
#include "../../kernels/sample.cu"
#include "../emulator/kernels.hpp"
}  // namespace

#include "launch.hpp"

namespace driver {

#if CROUPIER_CLUSTER
std::vector<Kernel> clustered_kernels() {
#else
std::vector<Kernel> cooperative_kernels() {
#endif
    std::vector<Kernel> kernels;
    for (const NamedKernel& named : kKernels) {
        auto kernel = named.run;
        kernels.push_back(Kernel{named.name, CROUPIER_CLUSTER != 0, kThreads, [kernel](const Grid& grid, const Arguments& told) {
            auto inputs = reinterpret_cast<const u8*>(told.inputs);
            auto outputs = reinterpret_cast<u8*>(told.outputs);
            auto scratch = reinterpret_cast<Scratch*>(told.scratch);
            emulator::Machine::self().launch(
                emulator::Index{grid.team_size, grid.teams, 1}, grid.threads, grid.shared_bytes, told.rows,
                [&] { kernel(inputs, outputs, scratch, told.first, told.rows, told.slice_chunks, told.cached_vectors); });
        }});
    }
    return kernels;
}

}  // namespace driver
