// Shared memory that notices what a GPU does not: an index out of bounds, a read of uninitialised memory, and accesses of two
// threads to one place without a barrier between them.
#pragma once
#include <typeinfo>

#include "machine.hpp"

namespace emulator {

struct Cell {
    static constexpr uint32_t kNobody = ~0u, kSeveral = ~0u - 1;
    bool written = false;
    bool atomically = false;
    // The last writer and reader, and the number of the block's barrier before each access.
    uint32_t writer = kNobody, write_time = 0, reader = kNobody, read_time = 0;
    // The number of the team's barrier before the last write, and before the last read by another block.
    uint32_t team_write_time = kNobody, far_read_time = kNobody;
};

struct Array {
    unsigned number;  // its index among the block's arrays
    const std::type_info* type;
    unsigned count;
    size_t element_bytes;
    std::vector<unsigned char> bytes;
    std::vector<Cell> cells;
};

struct SharedMemory {
    size_t bytes;  // what the launch gave
    std::vector<std::unique_ptr<Array>> arrays;
};

enum Access { kRead, kWrite, kAtomic };

inline void check(Array& array, unsigned i, Access access) {
#ifdef EMULATOR_UNSANITIZED
    return (void)array, (void)i, (void)access;  // the other builds check
#endif
    Thread& thread = *Machine::self().current;
    uint32_t me = thread.index.x, now = thread.block->barrier.times;
    if (i >= array.count) fault("thread %u is out of bounds of shared memory: %u of %u", me, i, array.count);
    Cell& cell = array.cells[i];
    if (access != kWrite && !cell.written) fault("thread %u reads uninitialised shared memory: %u of %u", me, i, array.count);
    bool written = cell.writer != Cell::kNobody && cell.write_time == now && cell.writer != me;
    bool read = cell.reader != Cell::kNobody && cell.read_time == now && cell.reader != me;
    bool raced = access == kRead ? written : access == kWrite ? written || read : (written && !cell.atomically) || read;
    if (raced) {
        fault("race in shared memory: thread %u %s %u of %u, which another thread has %s since the last barrier", me,
              access == kRead ? "reads" : "writes", i, array.count, written ? "written" : "read");
    }
    if (access == kRead) {
        cell.reader = cell.reader != Cell::kNobody && cell.read_time == now && cell.reader != me ? Cell::kSeveral : me;
        cell.read_time = now;
        return;
    }
    uint32_t team_now = Machine::self().team().times;
    if (cell.far_read_time == team_now) {
        fault("race between blocks: thread %u writes %u of %u, which another block has read since the team's last barrier", me,
              i, array.count);
    }
    cell.team_write_time = team_now;
    cell.writer = written ? Cell::kSeveral : me;
    cell.write_time = now;
    cell.atomically = access == kAtomic;
    cell.written = true;
}

// Checks a read from another block of the team. The value must have been written before the team's last barrier.
inline void check_far(Array& array, unsigned i, const Block& owner) {
#ifdef EMULATOR_UNSANITIZED
    return (void)array, (void)i, (void)owner;
#endif
    Thread& thread = *Machine::self().current;
    uint32_t me = thread.index.x, team_now = Machine::self().team().times;
    if (owner.has_ended) fault("thread %u reads shared memory of a block that has ended", me);
    if (i >= array.count) fault("thread %u is out of bounds of another block's memory: %u of %u", me, i, array.count);
    Cell& cell = array.cells[i];
    if (!cell.written) fault("thread %u reads uninitialised memory of another block: %u of %u", me, i, array.count);
    if (cell.team_write_time == team_now) {
        fault("race between blocks: thread %u reads %u of %u, which its block has written since the team's last barrier", me, i,
              array.count);
    }
    cell.far_read_time = team_now;
}

}  // namespace emulator

template <class T>
struct Shared {
    emulator::Array* array;

    struct Element {
        emulator::Array* array;
        unsigned i;
        operator T() const {
            emulator::check(*array, i, emulator::kRead);
            T value;
            memcpy(&value, &array->bytes[i * sizeof(T)], sizeof(T));
            return value;
        }
        const Element& operator=(const T& value) const {
            emulator::check(*array, i, emulator::kWrite);
            memcpy(&array->bytes[i * sizeof(T)], &value, sizeof(T));
            return *this;
        }
        const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }
    };
    Element operator[](unsigned i) const { return Element{array, i}; }
};

inline unsigned shared_add(Shared<unsigned> shared, unsigned i, unsigned value) {
    emulator::check(*shared.array, i, emulator::kAtomic);
    unsigned old, sum;
    memcpy(&old, &shared.array->bytes[i * sizeof old], sizeof old);
    sum = old + value;
    memcpy(&shared.array->bytes[i * sizeof sum], &sum, sizeof sum);
    return old;
}

inline void shared_or(Shared<unsigned> shared, unsigned i, unsigned value) {
    emulator::check(*shared.array, i, emulator::kAtomic);
    unsigned old;
    memcpy(&old, &shared.array->bytes[i * sizeof old], sizeof old);
    old |= value;
    memcpy(&shared.array->bytes[i * sizeof old], &old, sizeof old);
}

inline void shared_max(Shared<unsigned long long> shared, unsigned i, unsigned long long value) {
    emulator::check(*shared.array, i, emulator::kAtomic);
    unsigned long long old;
    memcpy(&old, &shared.array->bytes[i * sizeof old], sizeof old);
    if (value > old) memcpy(&shared.array->bytes[i * sizeof old], &value, sizeof value);
}

template <class T>
Shared<T> in_shared(Shared<T> array) {
    return array;
}

struct Two {
    unsigned long long a, b;
};
inline Two two_of(Shared<unsigned long long> array, unsigned i) {
    if (i % 2 != 0) emulator::fault("two are read from %u on, which is no even place", i);
    return Two{array[i], array[i + 1]};
}

// Every thread cuts the same arrays in the same order; the first thread creates them.
struct Carver {
    unsigned taken = 0;
    size_t bytes = 0;

    template <class T>
    Shared<T> take(unsigned count) {
        emulator::SharedMemory& memory = *emulator::Machine::self().current->block->shared;
        bytes += (count * sizeof(T) + 15) / 16 * 16;
        if (bytes > memory.bytes) emulator::fault("%zu bytes of shared memory are used, %zu were given", bytes, memory.bytes);
        if (taken == memory.arrays.size()) {
            auto array = std::make_unique<emulator::Array>();
            array->number = taken;
            array->type = &typeid(T);
            array->count = count;
            array->bytes.resize(count * sizeof(T));
            array->cells.resize(count);
            memory.arrays.push_back(std::move(array));
        }
        emulator::Array& array = *memory.arrays[taken++];
        if (array.count != count || *array.type != typeid(T)) emulator::fault("threads cut shared memory differently");
        return Shared<T>{&array};
    }
};

inline Carver carver() { return Carver{}; }

template <class T>
const T& whole(Shared<unsigned> words, unsigned first) {
    for (unsigned i = 0; i < sizeof(T) / 4; ++i) emulator::check(*words.array, first + i, emulator::kRead);
    return *reinterpret_cast<const T*>(words.array->bytes.data() + 4 * first);
}

// An array of another block of the team, for reading.
template <class T>
struct Far {
    emulator::Array* array;
    const emulator::Block* owner;
    T operator[](unsigned i) const {
        bool is_own = owner == emulator::Machine::self().current->block;
        if (is_own) emulator::check(*array, i, emulator::kRead);
        else emulator::check_far(*array, i, *owner);
        T value;
        memcpy(&value, &array->bytes[i * sizeof(T)], sizeof(T));
        return value;
    }
};

// A struct that was written as words, as for the block's own arrays.
template <class T>
T whole(Far<unsigned> words, unsigned first) {
    unsigned taken[sizeof(T) / 4];
    for (unsigned i = 0; i < sizeof(T) / 4; ++i) taken[i] = words[first + i];
    T value;
    memcpy(&value, taken, sizeof value);
    return value;
}

template <class T>
Far<T> of_block(Shared<T> array, unsigned rank) {
    const emulator::Block* owner = emulator::Machine::self().block(rank);
    if (owner == nullptr) emulator::fault("there is no block %u in the team", rank);
    auto& arrays = owner->shared->arrays;
    if (array.array->number >= arrays.size()) emulator::fault("block %u has not cut its shared memory yet", rank);
    return Far<T>{arrays[array.array->number].get(), owner};
}
