// Streams and events.
#include "stream.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ipc.hpp"

namespace driver {
namespace {

struct Event {
    unsigned flags;
    Device* device;
    std::shared_ptr<Stream> stream = nullptr;  // where it was recorded last
    uint64_t number = 0;
    double microseconds = 0;

    bool is_over() const { return stream == nullptr || stream->done >= number; }
    Result wait() { return is_over() ? kSuccess : stream->run_to(number); }
};

constexpr unsigned kNonBlocking = 1;                             // of streams
constexpr unsigned kDisableTiming = 2, kInterprocess = 4;        // of events

std::map<void*, std::shared_ptr<Stream>> streams;
std::map<void*, std::shared_ptr<Event>> events;

std::shared_ptr<Event> event_of(void* handle) {
    auto found = events.find(handle);
    return found != events.end() ? found->second : nullptr;
}

// The default stream of each device.
std::shared_ptr<Stream> unnamed(Device& device) {
    static std::map<Device*, std::shared_ptr<Stream>> unnamed;
    auto& stream = unnamed[&device];
    if (stream == nullptr) stream = std::make_shared<Stream>(Stream{&device, true, {}});
    return stream;
}

}  // namespace

Result Stream::run_to(uint64_t number) {
    while (done < number && !asked.empty()) {
        auto next = std::move(asked.front());
        asked.pop_front();
        ++done;
        // A broken device does no more work.
        if (device->broken != kSuccess) continue;
        Result wrong = next();
        Config::get().microseconds = std::max(Config::get().microseconds, device->microseconds);
        if (wrong == kNotReady) {
            // The device is still busy with it, whenever somebody asks.
            asked.push_front([] { return kNotReady; });
            --done;
            return kNotReady;
        }
        if (wrong != kSuccess) device->broken = wrong;
    }
    return device->broken;
}

std::shared_ptr<Stream> stream_of(Device& device, void* handle) {
    // The legacy default stream and the per-thread one are the same here.
    if (handle == nullptr || handle == reinterpret_cast<void*>(1) || handle == reinterpret_cast<void*>(2)) return unnamed(device);
    auto found = streams.find(handle);
    return found != streams.end() && found->second->device == &device ? found->second : nullptr;
}

void ask(Device& device, Stream& stream, std::function<Result()> what) {
    if (stream.is_captured) return stream.captured.push_back(std::move(what));
    std::shared_ptr<Stream> without_name = unnamed(device);
    if (&stream == without_name.get()) {
        for (auto& [handle, other] : streams) {
            if (other->device == &device && other->is_blocking) other->finish();
        }
    } else if (stream.is_blocking) {
        without_name->finish();
    }
    stream.asked.push_back([&device, at = Config::get().microseconds, what = std::move(what)] {
        device.microseconds = std::max(device.microseconds, at);
        return what();
    });
}

Result finish_all(Device& device) {
    bool is_over = unnamed(device)->finish() != kNotReady;
    for (auto& [handle, stream] : streams) {
        if (stream->device == &device && stream->finish() == kNotReady) is_over = false;
    }
    return is_over ? device.broken : kNotReady;
}

}  // namespace driver

using namespace driver;

CUDA_API Result cuStreamCreateWithPriority(void** to, unsigned flags, int) {
    DRIVER_CALL(context);
    if (to == nullptr || flags > kNonBlocking) return call(kInvalidValue);
    auto stream = std::make_shared<Stream>(Stream{&call.device(), flags != kNonBlocking, {}});
    *to = stream.get();
    streams[stream.get()] = stream;
    return kSuccess;
}

CUDA_API Result cuStreamCreate(void** to, unsigned flags) { return cuStreamCreateWithPriority(to, flags, 0); }

CUDA_API Result cuStreamDestroy_v2(void* handle) {
    DRIVER_CALL(context);
    auto found = streams.find(handle);
    if (found == streams.end()) return call(kInvalidHandle);
    Result done = found->second->finish();
    streams.erase(found);
    return call(done);
}

CUDA_API Result cuStreamSynchronize(void* handle) {
    DRIVER_CALL(context);
    auto stream = stream_of(call.device(), handle);
    return call.waited(stream != nullptr ? stream->finish() : kInvalidHandle);
}

// Each query does one piece of work.
CUDA_API Result cuStreamQuery(void* handle) {
    DRIVER_CALL(context);
    auto stream = stream_of(call.device(), handle);
    if (stream == nullptr) return call(kInvalidHandle);
    bool is_over = stream->asked.empty();
    if (Result wrong = stream->run_to(stream->done + 1)) return call(wrong);
    return call(is_over ? kSuccess : kNotReady);
}

CUDA_API Result cuStreamWaitEvent(void* handle, void* event_handle, unsigned flags) {
    DRIVER_CALL(context);
    auto stream = stream_of(call.device(), handle);
    auto event = event_of(event_handle);
    if (stream == nullptr || event == nullptr) return call(kInvalidHandle);
    if (flags != 0) return call(kInvalidValue);
    // Waits for what has been recorded up to now, if anything.
    Event recorded = *event;
    ask(call.device(), *stream, [recorded]() mutable { return recorded.wait(); });
    return kSuccess;
}

CUDA_API Result cuEventCreate(void** to, unsigned flags) {
    DRIVER_CALL(context);
    bool is_shared = (flags & kInterprocess) != 0;
    if (to == nullptr || flags > 7 || (is_shared && (flags & kDisableTiming) == 0)) return call(kInvalidValue);
    auto event = std::make_shared<Event>(Event{flags, &call.device()});
    *to = event.get();
    events[event.get()] = event;
    return kSuccess;
}

CUDA_API Result cuEventDestroy_v2(void* handle) {
    DRIVER_CALL(context);
    return call(events.erase(handle) == 1 ? kSuccess : kInvalidHandle);
}

CUDA_API Result cuEventRecord(void* handle, void* stream_handle) {
    DRIVER_CALL(context);
    auto event = event_of(handle);
    auto stream = stream_of(call.device(), stream_handle);
    if (event == nullptr || stream == nullptr) return call(kInvalidHandle);
    std::weak_ptr<Event> later = event;
    ask(call.device(), *stream, [later] {
        if (auto event = later.lock()) event->microseconds = event->device->microseconds;
        return kSuccess;
    });
    event->stream = stream;
    event->number = stream->last();
    // Another process cannot advance this one's streams, so the work is done at once.
    return call((event->flags & kInterprocess) != 0 ? stream->finish() : kSuccess);
}

CUDA_API Result cuEventSynchronize(void* handle) {
    DRIVER_CALL(context);
    auto event = event_of(handle);
    return call.waited(event != nullptr ? event->wait() : kInvalidHandle);
}

CUDA_API Result cuEventQuery(void* handle) {
    DRIVER_CALL(context);
    auto event = event_of(handle);
    if (event == nullptr) return call(kInvalidHandle);
    if (event->is_over()) return kSuccess;
    Result wrong = event->stream->run_to(event->stream->done + 1);
    return call(wrong != kSuccess ? wrong : kNotReady);
}

CUDA_API Result cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    DRIVER_CALL(context);
    auto start = event_of(from), end = event_of(to);
    if (start == nullptr || end == nullptr || start->stream == nullptr || end->stream == nullptr) return call(kInvalidHandle);
    if (((start->flags | end->flags) & kDisableTiming) != 0) return call(kInvalidHandle);
    if (!start->is_over() || !end->is_over()) return call(kNotReady);
    *milliseconds = float((end->microseconds - start->microseconds) / 1e3);
    return kSuccess;
}

CUDA_API Result cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    return cuEventElapsedTime(milliseconds, from, to);
}

CUDA_API Result cuIpcGetEventHandle(Told* handle, void* event_handle) {
    DRIVER_CALL(context);
    auto event = event_of(event_handle);
    if (event == nullptr || (event->flags & kInterprocess) == 0) return call(kInvalidHandle);
    *handle = tell(kOfEvent, 0);
    return kSuccess;
}

// What was recorded in the other process is done by now, so there is nothing to wait for.
CUDA_API Result cuIpcOpenEventHandle(void** to, Told handle) {
    DRIVER_CALL(context);
    if (Result refused = told(handle, kOfEvent)) return call(refused);
    return cuEventCreate(to, kInterprocess | kDisableTiming);
}
