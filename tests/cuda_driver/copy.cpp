// Copies and fills, on streams.
#include <cstring>

#include "memory.hpp"
#include "stream.hpp"

namespace driver {
namespace {

// Memory of the host or the device.
struct Side {
    Address at;
    bool is_device;
};

Side on_device(Address at) { return Side{at, true}; }
Side host(const void* at) { return Side{Address(at), false}; }

void* pointer(Address at) { return reinterpret_cast<void*>(at); }

bool may(Side side, size_t bytes, int access) { return side.is_device ? is_on_device(side.at, bytes, access) : side.at != 0; }

// Does a copy or fill of so many bytes on the device, unless a fault is planted there.
Result happen(Device& device, size_t bytes, const std::function<void()>& what) {
    Result planted;
    if (Config::get().is_planted(Fault::kCopy, &planted)) return planted;
    Opened opened;
    what();
    device.microseconds += double(bytes) / 1e6;
    return kSuccess;
}

Result copy(Call& call, Side to, Side from, size_t bytes, void* stream_handle, bool waits) {
    Device* device = &call.device();
    auto stream = stream_of(*device, stream_handle);
    if (stream == nullptr) return kInvalidHandle;
    if (bytes == 0) return kSuccess;
    if (!may(to, bytes, PROT_WRITE) || !may(from, bytes, PROT_READ)) return kInvalidValue;
    if (!from.is_device) {
        uploaded[to.at] = bytes;
    } else if (to.is_device) {
        uploaded[Address(range_of(to.at)->at)] = 0;
    }
    if (!from.is_device && !is_pinned(pointer(from.at), bytes)) {
        // The caller may reuse the memory as soon as the call returns.
        std::string staged(static_cast<const char*>(pointer(from.at)), bytes);
        ask(*device, *stream, [=] { return happen(*device, bytes, [&] { memcpy(pointer(to.at), staged.data(), bytes); }); });
    } else {
        ask(*device, *stream, [=] { return happen(*device, bytes, [&] { memmove(pointer(to.at), pointer(from.at), bytes); }); });
    }
    // Memory that is not pinned may be gone later, so it has to be written now.
    bool must_wait = waits || (!to.is_device && !is_pinned(pointer(to.at), bytes));
    return must_wait ? stream->finish() : kSuccess;
}

Result fill(Call& call, Address to, unsigned char with, size_t bytes, void* stream_handle) {
    Device* device = &call.device();
    auto stream = stream_of(*device, stream_handle);
    if (stream == nullptr) return kInvalidHandle;
    if (!is_on_device(to, bytes, PROT_WRITE)) return kInvalidValue;
    ask(*device, *stream, [=] { return happen(*device, bytes, [&] { memset(pointer(to), with, bytes); }); });
    return kSuccess;
}

}  // namespace
}  // namespace driver

using namespace driver;

CUDA_API Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
    DRIVER_CALL(context);
    return call(copy(call, on_device(to), host(from), bytes, stream, false));
}

CUDA_API Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
    DRIVER_CALL(context);
    return call(copy(call, host(to), on_device(from), bytes, stream, false));
}

CUDA_API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
    DRIVER_CALL(context);
    return call(copy(call, on_device(to), on_device(from), bytes, stream, false));
}

CUDA_API Result cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
    DRIVER_CALL(context);
    return call(copy(call, on_device(to), host(from), bytes, nullptr, true));
}

CUDA_API Result cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
    DRIVER_CALL(context);
    return call(copy(call, host(to), on_device(from), bytes, nullptr, true));
}

// It returns before the copy is done.
CUDA_API Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
    DRIVER_CALL(context);
    return call(copy(call, on_device(to), on_device(from), bytes, nullptr, false));
}

CUDA_API Result cuMemsetD8Async(Address to, unsigned char with, size_t bytes, void* stream) {
    DRIVER_CALL(context);
    return call(fill(call, to, with, bytes, stream));
}

// It may return before the fill is done.
CUDA_API Result cuMemsetD8_v2(Address to, unsigned char with, size_t bytes) {
    DRIVER_CALL(context);
    return call(fill(call, to, with, bytes, nullptr));
}
