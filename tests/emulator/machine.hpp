// Runs the threads of a team (the blocks that work on one row), each as a fiber, and knows what they wait for. The order in which
// ready threads run is shuffled from a seed, and blocks are not equally fast, so that a result that depends on the order does not
// stay hidden.
#pragma once
#include <unistd.h>

#include <cstdarg>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "fiber.hpp"

namespace emulator {

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

// If a rule of the machine is broken, the process ends at once with this code.
constexpr int kFaultCode = 70;

[[noreturn, gnu::format(printf, 1, 2)]] inline void fault(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("FAULT: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fflush(stderr);
    _exit(kFaultCode);
}

struct Site {
    const char* file = nullptr;
    int line = 0;
    bool operator==(const Site& other) const { return line == other.line && strcmp(file, other.file) == 0; }
};

// A place where a fixed set of threads must all arrive before any goes on.
struct Meeting {
    unsigned expected = 0;
    unsigned arrived = 0;
    unsigned times = 0;
    Site site;
    // What each lane brought, for two meetings in turn: no lane can be two meetings ahead.
    unsigned long long brought[2][32] = {};
};

constexpr unsigned kLanes = 32;

struct SharedMemory;

struct Block {
    Index index;
    Meeting barrier;
    std::vector<Meeting> warps;
    std::shared_ptr<SharedMemory> shared;
    bool has_ended = false;  // whether one of its threads has ended
};

struct Thread {
    Fiber fiber;
    Block* block = nullptr;
    Index index;
    Meeting* waits_for = nullptr;
    unsigned wait_times = 0;
    bool ended = true;
};

class Machine {
  public:
    Index grid;
    Thread* current = nullptr;

    static Machine& self() {
        static Machine machine;
        return machine;
    }

    // Runs one kernel: the teams (rows of blocks) one after another, the threads of a team together.
    void launch(Index blocks, unsigned threads, size_t shared_bytes, uint64_t seed, const std::function<void()>& body);

    // Waits until all threads of the meeting have arrived. Returns the number of the meeting.
    unsigned meet(Meeting& meeting, Site site) {
        Thread& thread = *current;
        if (meeting.arrived == 0) meeting.site = site;
        if (!(meeting.site == site)) {
            fault("divergent barrier: thread %u of block %u is at %s:%d, another is at %s:%d", thread.index.x,
                  thread.block->index.x, site.file, site.line, meeting.site.file, meeting.site.line);
        }
        unsigned number = meeting.times;
        if (++meeting.arrived == meeting.expected) {
            meeting.arrived = 0;
            ++meeting.times;
            progress = true;
        } else {
            thread.waits_for = &meeting;
            thread.wait_times = number;
            thread.fiber.leave(false);
            thread.waits_for = nullptr;
        }
        return number;
    }

    // Lets the other threads run.
    void pause() { current->fiber.leave(false); }

    Meeting& team() { return team_meeting; }
    const Block* block(unsigned rank) const { return rank < blocks.size() ? blocks[rank].get() : nullptr; }

  private:
    std::vector<std::unique_ptr<Thread>> threads;
    std::vector<std::unique_ptr<Block>> blocks;
    Meeting team_meeting;
    const std::function<void()>* body = nullptr;
    uint64_t random = 1;
    bool progress = false;
    // This block rests until the others cannot go on without it, so that they get as far ahead of it as barriers let them.
    const Block* resting = nullptr;

    static void begin() {
        Machine& machine = self();
        machine.current->fiber.enter();
        (*machine.body)();
        machine.current->ended = true;
        machine.current->block->has_ended = true;
        machine.progress = true;
        machine.current->fiber.leave(true);
    }

    uint64_t next() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return random;
    }

    void let_one_rest() {
        if (resting == nullptr && blocks.size() > 1 && next() % 8 == 0) resting = blocks[next() % blocks.size()].get();
    }

    void set_up(unsigned y, unsigned blocks_of_team, unsigned threads_of_block, size_t shared_bytes);
    void run_team();
    [[noreturn]] void report_stuck() const;
};

inline void Machine::run_team() {
    std::vector<Thread*> order;
    for (auto& thread : threads) {
        if (!thread->ended) order.push_back(thread.get());
    }
    // Rounds without a meeting or the end of a thread. If there are too many, a thread spins for what never comes.
    unsigned idle = 0;
    resting = nullptr;
    while (!order.empty()) {
        let_one_rest();
        progress = false;
        bool ran = false;
        // A rotation and a direction mix well enough, and are cheap.
        size_t count = order.size(), from = next() % count;
        bool backwards = next() & 1;
        for (size_t i = 0; i < count; ++i) {
            Thread* thread = order[(backwards ? from + count - i : from + i) % count];
            if (thread->ended || thread->block == resting) continue;
            if (thread->waits_for != nullptr && thread->waits_for->times == thread->wait_times) continue;
            ran = true;
            current = thread;
            thread->fiber.resume();
        }
        if (!progress && resting != nullptr) {
            resting = nullptr;
            continue;
        }
        if (!ran) report_stuck();
        idle = progress ? 0 : idle + 1;
        if (idle > 1000) fault("a thread spins for what never comes");
        size_t left = 0;
        for (Thread* thread : order) {
            if (!thread->ended) order[left++] = thread;
        }
        order.resize(left);
    }
}

inline void Machine::report_stuck() const {
    for (auto& thread : threads) {
        if (thread->ended || thread->waits_for == nullptr) continue;
        const Meeting& meeting = *thread->waits_for;
        fault("divergent barrier: %u of %u threads are at %s:%d, the others ended or wait elsewhere", meeting.arrived,
              meeting.expected, meeting.site.file, meeting.site.line);
    }
    fault("no thread can go on");
}

}  // namespace emulator
