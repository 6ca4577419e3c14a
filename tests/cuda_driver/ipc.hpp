// The legacy IPC handles, which processes send each other.
#pragma once
#include <unistd.h>

#include <cstring>

#include "driver.hpp"

namespace driver {

// The 64 bytes of a handle.
struct Told {
    char magic[8];
    int process, fd;
    char unused[48];
};
static_assert(sizeof(Told) == 64);

constexpr char kOfMemory[8] = "memory", kOfEvent[8] = "event";

inline Told tell(const char (&kind)[8], int fd) {
    Told handle{{}, getpid(), fd, {}};
    memcpy(handle.magic, kind, sizeof kind);
    return handle;
}

// Whether a handle can be opened here. As with the real driver, it cannot be in the process that made it.
inline Result told(const Told& handle, const char (&kind)[8]) {
    if (memcmp(handle.magic, kind, sizeof kind) != 0) return kInvalidValue;
    return handle.process == getpid() ? kInvalidContext : kSuccess;
}

}  // namespace driver
