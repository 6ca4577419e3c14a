// Allocations, and what is known about an address.
#include "memory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace driver {

std::map<Address, Range> ranges;
std::map<Address, size_t> uploaded;

namespace {

// The name of a memfd with device memory begins with this, followed by the device's UUID.
constexpr char kMemfdName[] = "fake-cuda-";
// The garbage in new memory, and how many of its bytes are filled with it.
constexpr int kGarbage = 0xA5;
constexpr size_t kGarbageBytes = 1 << 20;

// A protection key that opens all device memory to one thread at once; other threads cannot access it. -1 if the processor has no
// such keys: then half a gigabyte is opened and closed page by page, which takes 50 ms.
int key() {
    static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return key;
}

size_t rounded(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

}  // namespace

Memory::~Memory() {
    if (fd >= 0) close(fd);
    if (is_counted) device->used -= bytes;
}

Result Memory::create(Device& device, size_t bytes, std::shared_ptr<Memory>* to) {
    if (Result refused = may_allocate(device, bytes)) return refused;
    auto memory = std::make_shared<Memory>();
    memory->fd = memfd_create((kMemfdName + hex(device.uuid)).c_str(), MFD_CLOEXEC);
    struct stat about;
    if (memory->fd < 0 || ftruncate(memory->fd, off_t(bytes)) != 0 || fstat(memory->fd, &about) != 0) return kUnknown;
    memory->inode = about.st_ino;
    memory->bytes = bytes;
    memory->device = &device;
    memory->is_counted = true;
    device.used += bytes;
    const std::string garbage(std::min(bytes, kGarbageBytes), char(kGarbage));
    if (pwrite(memory->fd, garbage.data(), garbage.size(), 0) != ssize_t(garbage.size())) return kUnknown;
    *to = std::move(memory);
    return kSuccess;
}

Result Memory::of_descriptor(int fd, std::shared_ptr<Memory>* to) {
    char name[256] = {};
    std::string link = "/proc/self/fd/" + std::to_string(fd);
    const std::string prefix = std::string("/memfd:") + kMemfdName;
    struct stat about;
    if (readlink(link.c_str(), name, sizeof name - 1) < 0 || fstat(fd, &about) != 0) return kInvalidValue;
    if (strncmp(name, prefix.c_str(), prefix.size()) != 0) return kInvalidValue;
    for (auto& device : Config::get().devices) {
        if (strncmp(name + prefix.size(), hex(device->uuid).c_str(), 32) != 0) continue;
        auto memory = std::make_shared<Memory>();
        memory->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (memory->fd < 0) return kUnknown;
        memory->bytes = size_t(about.st_size);
        memory->inode = about.st_ino;
        memory->device = device.get();
        memory->handle_types = 1;
        *to = std::move(memory);
        return kSuccess;
    }
    return kInvalidDevice;
}

Range* range_of(Address address) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) return nullptr;
    Range& before = std::prev(after)->second;
    return address - Address(before.at) < before.bytes ? &before : nullptr;
}

char* map(const Memory& memory, void* place) {
    int flags = MAP_SHARED | (place != nullptr ? MAP_FIXED : 0);
    void* at = mmap(place, memory.bytes, PROT_NONE, flags, memory.fd, 0);
    return at != MAP_FAILED ? static_cast<char*>(at) : nullptr;
}

bool is_on_device(Address address, size_t bytes, int access) {
    while (bytes > 0) {
        const Range* range = range_of(address);
        if (range == nullptr || range->kind == Kind::kPinned || (range->access & access) != access) return false;
        size_t here = std::min(bytes, size_t(Address(range->at) + range->bytes - address));
        address += here;
        bytes -= here;
    }
    return true;
}

bool is_pinned(const void* address, size_t bytes) {
    const Range* range = range_of(Address(address));
    return range != nullptr && range->kind == Kind::kPinned && Address(address) - Address(range->at) + bytes <= range->bytes;
}

Result may_allocate(Device& device, size_t bytes) {
    Result planted;
    if (Config::get().is_planted(Fault::kAllocate, &planted)) return planted;
    return bytes > Config::get().memory - device.used ? kOutOfMemory : kSuccess;
}

void Opened::protect(bool is_open) {
    if (key() >= 0) pkey_set(key(), is_open ? 0 : PKEY_DISABLE_ACCESS);
    for (auto& [address, range] : ranges) {
        int access = is_open || key() >= 0 ? range.access : PROT_NONE;
        if (range.kind == Kind::kPinned || access == range.pages) continue;
        if (pkey_mprotect(range.at, range.bytes, access, key()) != 0) {
            perror("pkey_mprotect");
            abort();
        }
        range.pages = access;
    }
}

}  // namespace driver

using namespace driver;

CUDA_API Result cuMemAlloc_v2(Address* to, size_t bytes) {
    DRIVER_CALL(context);
    if (to == nullptr || bytes == 0) return call(kInvalidValue);
    std::shared_ptr<Memory> memory;
    if (Result refused = Memory::create(call.device(), rounded(bytes), &memory)) return call(refused);
    char* at = map(*memory, nullptr);
    if (at == nullptr) return call(kOutOfMemory);
    *to = Address(at);
    ranges[*to] = Range{Kind::kAllocated, at, memory->bytes, memory, PROT_READ | PROT_WRITE};
    return kSuccess;
}

CUDA_API Result cuMemFree_v2(Address address) {
    DRIVER_CALL(context);
    if (address == 0) return kSuccess;
    auto found = ranges.find(address);
    if (found == ranges.end() || found->second.kind != Kind::kAllocated) return call(kInvalidValue);
    Result done = finish_all(*found->second.memory->device);
    munmap(found->second.at, found->second.bytes);
    ranges.erase(found);
    return call(done);
}

CUDA_API Result cuMemHostAlloc(void** to, size_t bytes, unsigned flags) {
    DRIVER_CALL(context);
    if (to == nullptr || bytes == 0 || flags > 7) return call(kInvalidValue);
    Result planted;
    if (Config::get().is_planted(Fault::kAllocate, &planted)) return call(planted);
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return call(kOutOfMemory);
    memset(at, kGarbage, std::min(bytes, kGarbageBytes));
    ranges[Address(at)] = Range{Kind::kPinned, static_cast<char*>(at), bytes, nullptr, PROT_READ | PROT_WRITE};
    *to = at;
    return kSuccess;
}

// Pinned memory has one address on both sides.
CUDA_API Result cuMemHostGetDevicePointer_v2(Address* to, void* at, unsigned flags) {
    DRIVER_CALL(context);
    if (to == nullptr || flags != 0 || !is_pinned(at, 1)) return call(kInvalidValue);
    *to = Address(at);
    return kSuccess;
}

CUDA_API Result cuMemFreeHost(void* at) {
    DRIVER_CALL(context);
    auto found = ranges.find(Address(at));
    if (found == ranges.end() || found->second.kind != Kind::kPinned) return call(kInvalidValue);
    Result done = finish_all(call.device());
    munmap(at, found->second.bytes);
    ranges.erase(found);
    return call(done);
}

CUDA_API Result cuMemGetInfo_v2(size_t* free, size_t* total) {
    DRIVER_CALL(context);
    *total = Config::get().memory;
    *free = *total - call.device().used;
    return kSuccess;
}

CUDA_API Result cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
    DRIVER_CALL(context);
    const Range* range = range_of(address);
    Result planted;
    if (Config::get().is_planted(Fault::kRange, &planted)) return call(planted);
    if (range == nullptr || range->kind == Kind::kPinned) return call(kNotFound);
    if (base != nullptr) *base = Address(range->at);
    if (bytes != nullptr) *bytes = range->bytes;
    return kSuccess;
}

CUDA_API Result cuPointerGetAttribute(void* to, int attribute, Address address) {
    DRIVER_CALL(context);
    const Range* range = range_of(address);
    if (range == nullptr) return call(kInvalidValue);
    Device* device = range->memory != nullptr ? range->memory->device : &call.device();
    bool is_pinned = range->kind == Kind::kPinned;
    switch (attribute) {
        case 1: *static_cast<Device**>(to) = device; return kSuccess;                       // CONTEXT
        case 2: *static_cast<unsigned*>(to) = is_pinned ? 1 : 2; return kSuccess;           // MEMORY_TYPE: host, device
        case 3: *static_cast<Address*>(to) = address; return kSuccess;                      // DEVICE_POINTER
        case 9: *static_cast<int*>(to) = device->ordinal; return kSuccess;                  // DEVICE_ORDINAL
        case 10: *static_cast<bool*>(to) = range->kind == Kind::kAllocated; return kSuccess;  // IS_LEGACY_CUDA_IPC_CAPABLE
        case 11: *static_cast<Address*>(to) = Address(range->at); return kSuccess;          // RANGE_START_ADDR
        case 12: *static_cast<size_t*>(to) = range->bytes; return kSuccess;                 // RANGE_SIZE
        case 13: *static_cast<bool*>(to) = true; return kSuccess;                           // MAPPED
        default: return call(kInvalidValue);
    }
}
