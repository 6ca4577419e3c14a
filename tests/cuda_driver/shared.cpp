// Memory that processes share: virtual memory management, with descriptors.
#include <fcntl.h>
#include <unistd.h>

#include "memory.hpp"

namespace driver {
namespace {

struct Location {
    int type, id;
};

struct Properties {  // CUmemAllocationProp
    int type, handle_types;
    Location location;
    void* windows;
    unsigned char flags[8];
};

struct Access {  // CUmemAccessDesc
    Location location;
    int flags;
};

constexpr int kPinnedMemory = 1, kOnDevice = 1, kDescriptor = 1;

std::map<uint64_t, std::shared_ptr<Memory>> handles;
uint64_t last_handle = 0;
// Reserved addresses with their sizes, mapped or not.
std::map<Address, size_t> reserved;

uint64_t handle_to(std::shared_ptr<Memory> memory) {
    handles[++last_handle] = std::move(memory);
    return last_handle;
}

bool is_reserved(Address address, size_t bytes) {
    auto after = reserved.upper_bound(address);
    if (after == reserved.begin()) return false;
    auto [start, size] = *std::prev(after);
    return address - start <= size && bytes <= size - (address - start);
}

// Whether something is mapped in this range.
bool is_mapped(Address address, size_t bytes) {
    auto next = ranges.lower_bound(address);
    return range_of(address) != nullptr || (next != ranges.end() && next->first < address + bytes);
}

// The mappings that make up exactly these bytes: the first, and the one after the last; the same one twice if there are none.
auto mappings(Address address, size_t bytes) {
    auto from = ranges.find(address), to = from;
    for (Address at = address; at < address + bytes; ++to) {
        if (to == ranges.end() || to->first != at || to->second.kind != Kind::kMapped) return std::pair{from, from};
        at += to->second.bytes;
        if (at > address + bytes) return std::pair{from, from};
    }
    return std::pair{from, to};
}

}  // namespace
}  // namespace driver

using namespace driver;

CUDA_API Result cuMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int option) {
    DRIVER_CALL(initialised);
    if (bytes == nullptr || properties == nullptr || option < 0 || option > 1) return call(kInvalidValue);
    if (properties->type != kPinnedMemory || properties->location.type != kOnDevice) return call(kInvalidValue);
    if (device_at(properties->location.id) == nullptr) return call(kInvalidDevice);
    *bytes = kGranularity;
    return kSuccess;
}

CUDA_API Result cuMemCreate(uint64_t* handle, size_t bytes, const Properties* properties, unsigned long long flags) {
    DRIVER_CALL(initialised);
    if (handle == nullptr || properties == nullptr || flags != 0) return call(kInvalidValue);
    if (properties->type != kPinnedMemory || properties->location.type != kOnDevice) return call(kInvalidValue);
    if (bytes == 0 || bytes % kGranularity != 0) return call(kInvalidValue);
    if ((properties->handle_types & ~kDescriptor) != 0) return call(kNotSupported);
    Device* device = device_at(properties->location.id);
    if (device == nullptr) return call(kInvalidDevice);
    std::shared_ptr<Memory> memory;
    if (Result refused = Memory::create(*device, bytes, &memory)) return call(refused);
    memory->handle_types = properties->handle_types;
    *handle = handle_to(std::move(memory));
    return kSuccess;
}

CUDA_API Result cuMemRelease(uint64_t handle) {
    DRIVER_CALL(initialised);
    return call(handles.erase(handle) == 1 ? kSuccess : kInvalidValue);
}

CUDA_API Result cuMemGetAllocationPropertiesFromHandle(Properties* properties, uint64_t handle) {
    DRIVER_CALL(initialised);
    auto found = handles.find(handle);
    if (properties == nullptr || found == handles.end()) return call(kInvalidValue);
    const Memory& memory = *found->second;
    *properties = Properties{kPinnedMemory, memory.handle_types, {kOnDevice, memory.device->ordinal}, nullptr, {}};
    return kSuccess;
}

CUDA_API Result cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    DRIVER_CALL(initialised);
    const Range* range = range_of(Address(address));
    if (handle == nullptr || range == nullptr || range->kind != Kind::kMapped) return call(kInvalidValue);
    *handle = handle_to(range->memory);
    return kSuccess;
}

CUDA_API Result cuMemExportToShareableHandle(void* to, uint64_t handle, int type, unsigned long long flags) {
    DRIVER_CALL(initialised);
    auto found = handles.find(handle);
    if (to == nullptr || found == handles.end() || type != kDescriptor || flags != 0) return call(kInvalidValue);
    if ((found->second->handle_types & type) == 0) return call(kInvalidValue);
    int fd = fcntl(found->second->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return call(kUnknown);
    *static_cast<int*>(to) = fd;
    return kSuccess;
}

CUDA_API Result cuMemImportFromShareableHandle(uint64_t* handle, void* descriptor, int type) {
    DRIVER_CALL(initialised);
    if (handle == nullptr || type != kDescriptor) return call(kInvalidValue);
    std::shared_ptr<Memory> memory;
    if (Result refused = Memory::of_descriptor(int(intptr_t(descriptor)), &memory)) return call(refused);
    *handle = handle_to(std::move(memory));
    return kSuccess;
}

CUDA_API Result cuMemAddressReserve(Address* to, size_t bytes, size_t alignment, Address, unsigned long long flags) {
    DRIVER_CALL(initialised);
    if (to == nullptr || bytes == 0 || bytes % kGranularity != 0 || flags != 0) return call(kInvalidValue);
    if ((alignment & (alignment - 1)) != 0) return call(kInvalidValue);
    // Reserves more than was asked for, so that a part is aligned, and gives the rest back.
    size_t step = alignment > kGranularity ? alignment : kGranularity;
    void* room = mmap(nullptr, bytes + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return call(kOutOfMemory);
    size_t before = (step - Address(room) % step) % step;
    char* at = static_cast<char*>(room) + before;
    if (before > 0) munmap(room, before);
    munmap(at + bytes, step - before);
    *to = Address(at);
    reserved[*to] = bytes;
    return kSuccess;
}

CUDA_API Result cuMemAddressFree(Address address, size_t bytes) {
    DRIVER_CALL(initialised);
    auto found = reserved.find(address);
    if (found == reserved.end() || found->second != bytes || is_mapped(address, bytes)) return call(kInvalidValue);
    munmap(reinterpret_cast<void*>(address), bytes);
    reserved.erase(found);
    return kSuccess;
}

CUDA_API Result cuMemMap(Address address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) {
    DRIVER_CALL(initialised);
    auto found = handles.find(handle);
    if (found == handles.end() || offset != 0 || flags != 0 || bytes != found->second->bytes) return call(kInvalidValue);
    if (address % kGranularity != 0 || !is_reserved(address, bytes)) return call(kInvalidValue);
    if (is_mapped(address, bytes)) return call(kInvalidValue);
    char* at = map(*found->second, reinterpret_cast<void*>(address));
    if (at == nullptr) return call(kMapFailed);
    ranges[address] = Range{Kind::kMapped, at, bytes, found->second, PROT_NONE};
    return kSuccess;
}

CUDA_API Result cuMemUnmap(Address address, size_t bytes) {
    DRIVER_CALL(initialised);
    auto [from, to] = mappings(address, bytes);
    if (from == to) return call(kInvalidValue);
    Result done = finish_all(*from->second.memory->device);
    ranges.erase(from, to);
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return call(done);
}

CUDA_API Result cuMemSetAccess(Address address, size_t bytes, const Access* accesses, size_t count) {
    DRIVER_CALL(initialised);
    auto [from, to] = mappings(address, bytes);
    if (from == to || accesses == nullptr || count == 0) return call(kInvalidValue);
    for (size_t i = 0; i < count; ++i) {
        if (accesses[i].location.type != kOnDevice) return call(kInvalidValue);
        if (device_at(accesses[i].location.id) == nullptr) return call(kInvalidDevice);
        int flags = accesses[i].flags;
        if (flags != 0 && flags != 1 && flags != 3) return call(kInvalidValue);
        // No difference is made between devices.
        for (auto at = from; at != to; ++at) at->second.access = (flags & 1 ? PROT_READ : 0) | (flags & 2 ? PROT_WRITE : 0);
    }
    return kSuccess;
}
