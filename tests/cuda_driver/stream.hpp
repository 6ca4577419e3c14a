// What was asked of a device and has not happened yet.
#pragma once
#include <deque>

#include "driver.hpp"

namespace driver {

struct Stream {
    Device* device;
    // It and the stream without a name wait for each other.
    bool is_blocking;
    std::deque<std::function<Result()>> asked;
    // Of what was ever asked, how much has happened.
    uint64_t done = 0;
    // While it is captured: what was asked since, of which nothing happens.
    bool is_captured = false;
    std::vector<std::function<Result()>> captured = {};

    uint64_t last() const { return done + asked.size(); }
    // Lets things happen, in turn, up to one. Gives what went wrong; kNotReady where one of them never ends.
    Result run_to(uint64_t number);
    Result finish() { return run_to(last()); }
};

// The stream of a handle in a call's context, if there is such a one.
std::shared_ptr<Stream> stream_of(Device& device, void* handle);
// Has something happen on a stream, later.
void ask(Device& device, Stream& stream, std::function<Result()> what);

}  // namespace driver
