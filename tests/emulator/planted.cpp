// Kernels with one fault each. An emulator that lets one of them pass proves nothing about other kernels. tests/emulator.rs runs
// them by name and expects each to be caught.
#include "../../kernels/block.cuh"

namespace {

// One thread does not arrive at the barrier.
void missing_thread() {
    if (threadIdx.x != 3) __syncthreads();
}

// All threads arrive at a barrier, but not at the same one.
void two_barriers() {
    if (threadIdx.x < 7) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

// One lane does not take part in a shuffle.
void missing_lane() {
    if (threadIdx.x != 5) (void)__shfl_up_sync(kAllLanes, threadIdx.x, 1);
}

void half_a_warp() { (void)__shfl_up_sync(0xFFFFu, threadIdx.x, 1); }

void shared_beyond_its_end() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    array[threadIdx.x + 1] = 1;
}

void two_at_an_odd_place() {
    Carver memory = carver();
    Shared<u64> array = memory.take<u64>(2 * kThreads);
    array[threadIdx.x] = array[kThreads + threadIdx.x] = 0;
    __syncthreads();
    (void)two_of(array, threadIdx.x);
}

void more_shared_than_given() { (void)carver().take<u64>(1 << 20); }

void read_before_write() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    if (threadIdx.x < 40) array[threadIdx.x] = 1;
    __syncthreads();
    u32 value = array[threadIdx.x];
    (void)value;
}

void add_before_write() {
    Carver memory = carver();
    shared_add(memory.take<u32>(kThreads), threadIdx.x, 1);
}

void read_without_barrier() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    array[threadIdx.x] = 0;
    __syncthreads();
    array[threadIdx.x] = threadIdx.x;
    u32 value = array[threadIdx.x ^ 1];
    (void)value;
}

void write_without_barrier() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    array[threadIdx.x] = threadIdx.x;
    __syncthreads();
    u32 value = array[threadIdx.x ^ 1];
    array[threadIdx.x] = value + 1;
}

// A value of another block is read without a barrier of the team; in the second kernel with one, but it is overwritten meanwhile.
void far_read_without_barrier() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    array[threadIdx.x] = 0;
    cluster_barrier();
    array[threadIdx.x] = threadIdx.x;
    __syncthreads();
    u32 value = of_block(array, 1 - blockIdx.x)[threadIdx.x];
    (void)value;
}

void far_write_without_barrier() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    array[threadIdx.x] = 0;
    cluster_barrier();
    u32 value = of_block(array, 1 - blockIdx.x)[threadIdx.x];
    __syncthreads();
    array[threadIdx.x] = value;
}

void far_read_before_write() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    if (blockIdx.x == 0) array[threadIdx.x] = 0;
    cluster_barrier();
    u32 value = of_block(array, 1)[threadIdx.x];
    (void)value;
}

void far_read_of_the_ended() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    array[threadIdx.x] = 0;
    cluster_barrier();
    if (blockIdx.x == 1) return;
    for (u32 i = 0; i < 9; ++i) __nanosleep(20);
    u32 value = of_block(array, 1)[threadIdx.x];
    (void)value;
}

void wait_for_nobody() {
    static volatile bool never = false;
    while (!never) __nanosleep(20);
}

void global_beyond_its_end() {
    static u8* memory = static_cast<u8*>(malloc(kThreads));
    memory[threadIdx.x + 1] = 1;
}

// More than the hardware can count.
void fetch_of_too_much() {
    alignas(16) static u8 memory[1 << 20];
    fetch_ahead(memory, sizeof memory);
}

void undefined_shift() {
    static volatile u32 by = 32;
    by = 1u << by;
}

// What is right must pass.
void nothing() {
    Carver memory = carver();
    Shared<u32> array = memory.take<u32>(kThreads);
    array[threadIdx.x] = threadIdx.x;
    __syncthreads();
    u32 value = array[threadIdx.x ^ 1];
    __syncthreads();
    array[threadIdx.x] = warp_sum(value);
    __syncthreads();
    shared_add(array, 0, 1);
    cluster_barrier();
    value = of_block(array, 1 - blockIdx.x)[threadIdx.x];
    cluster_barrier();
    array[threadIdx.x] = value;
    (void)__reduce_add_sync(kAllLanes, __ballot_sync(kAllLanes, value == warp_scan(1)));
}

struct Named {
    const char* name;
    void (*kernel)();
};
const Named kPlanted[] = {
    {"missing_thread", missing_thread},
    {"two_barriers", two_barriers},
    {"missing_lane", missing_lane},
    {"half_a_warp", half_a_warp},
    {"shared_beyond_its_end", shared_beyond_its_end},
    {"two_at_an_odd_place", two_at_an_odd_place},
    {"more_shared_than_given", more_shared_than_given},
    {"read_before_write", read_before_write},
    {"add_before_write", add_before_write},
    {"read_without_barrier", read_without_barrier},
    {"write_without_barrier", write_without_barrier},
    {"far_read_without_barrier", far_read_without_barrier},
    {"far_write_without_barrier", far_write_without_barrier},
    {"far_read_before_write", far_read_before_write},
    {"far_read_of_the_ended", far_read_of_the_ended},
    {"wait_for_nobody", wait_for_nobody},
    {"global_beyond_its_end", global_beyond_its_end},
    {"fetch_of_too_much", fetch_of_too_much},
    {"undefined_shift", undefined_shift},
    {"nothing", nothing},
};

}  // namespace

int main(int count, char** arguments) {
    for (const Named& planted : kPlanted) {
        if (count < 2) puts(planted.name);
        else if (strcmp(planted.name, arguments[1]) == 0) {
            emulator::Machine::self().launch(emulator::Index{2, 1, 1}, kThreads, 4096, 7, planted.kernel);
            return 0;
        }
    }
    return count < 2 ? 0 : 2;
}
