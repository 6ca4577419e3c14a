// The work that a device was asked for and has not done yet.
#pragma once
#include <deque>

#include "driver.hpp"

namespace driver {

struct Stream {
    Device* device;
    // Whether it and the default stream wait for each other.
    bool is_blocking;
    std::deque<std::function<Result()>> asked;
    // How much of all work that was ever asked for is done.
    uint64_t done = 0;
    // While the stream is captured: the work asked for since then, which is not done.
    bool is_captured = false;
    std::vector<std::function<Result()>> captured = {};

    uint64_t last() const { return done + asked.size(); }
    // Does the work, in order, up to a number. Returns the error; kNotReady if some of the work never ends.
    Result run_to(uint64_t number);
    Result finish() { return run_to(last()); }
};

// The stream of a handle in a call's context, if there is one.
std::shared_ptr<Stream> stream_of(Device& device, void* handle);
// Adds work to a stream, to be done later.
void ask(Device& device, Stream& stream, std::function<Result()> what);

}  // namespace driver
