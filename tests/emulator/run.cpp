// Runs launches that come on standard input and answers with their outputs on standard output, until the input ends.
// tests/emulator/harness.rs is at the other end.
#include <unistd.h>

#include "../../kernels/sample.cu"
#include "kernels.hpp"

namespace {

struct Request {
    u32 kernel;  // its index in kKernels
    u32 first;   // from this row
    u32 rows;    // up to this one
    u32 team_size;
    u32 teams;
    u32 slice_chunks;
    u32 cached_vectors;
    u32 shared_bytes;
    u32 arrived;  // a planted fault: this many blocks seem to be at the first barrier already
    u32 unused;
    u64 seed;
    u64 inputs_bytes;
    u64 outputs_bytes;
};

bool read_all(void* to, size_t bytes) { return fread(to, 1, bytes, stdin) == bytes; }

struct Free {
    void operator()(void* memory) const { free(memory); }
};
using Buffer = std::unique_ptr<u8, Free>;

// Has exactly this size, so that the sanitizer sees an access to the first byte beyond it.
Buffer buffer(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 16, bytes) != 0) abort();
    return Buffer(static_cast<u8*>(memory));
}

void check_clean(const Scratch& scratch) {
    if (scratch.arrived != 0 || scratch.left != 0) emulator::fault("a launch left something for the next one");
}

// The addresses of rows that are spread come as offsets in the inputs.
void place_rows(const Request& request, u8* inputs) {
    for (u32 row = 0; row < request.rows; ++row) {
        reinterpret_cast<SpreadJob*>(inputs + request.cached_vectors)[row].from += reinterpret_cast<u64>(inputs);
    }
}

void run(const Request& request, u8* inputs, u8* outputs, std::vector<Scratch>& scratch) {
    auto kernel = kKernels[request.kernel].run;
    if (kernel == kSpread[request.kernel % 3]) place_rows(request, inputs);
    for (u32 team = 0; team < request.teams; ++team) scratch[team * request.team_size].arrived = request.arrived;
    emulator::Machine::self().launch(
        emulator::Index{request.team_size, request.teams, 1}, kThreads, request.shared_bytes, request.seed,
        [&] { kernel(inputs, outputs, scratch.data(), request.first, request.rows, request.slice_chunks, request.cached_vectors); });
    for (const Scratch& block : scratch) check_clean(block);
}

}  // namespace

int main() {
    std::vector<Scratch> scratch;
    Request request;
    // What the host has to know about this build.
    u32 about[4] = {kThreads, CROUPIER_CLUSTER, sizeof(Scratch), kChunk};
    fwrite(about, sizeof about, 1, stdout);
    fflush(stdout);
    while (read_all(&request, sizeof request)) {
        Buffer inputs = buffer(request.inputs_bytes), outputs = buffer(request.outputs_bytes);
        if (!read_all(inputs.get(), request.inputs_bytes)) return 1;
        memset(outputs.get(), 0xCD, request.outputs_bytes);
        size_t blocks = size_t(request.teams) * request.team_size;
        if (scratch.size() < blocks) scratch.resize(blocks);
        run(request, inputs.get(), outputs.get(), scratch);
        fwrite(outputs.get(), 1, request.outputs_bytes, stdout);
        fflush(stdout);
    }
    return 0;
}
