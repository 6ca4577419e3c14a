// Memory by the legacy IPC handles, which hold a descriptor of the process that made them.
#include "ipc.hpp"

#include <fcntl.h>

#include "memory.hpp"

using namespace driver;

CUDA_API Result cuIpcGetMemHandle(Told* handle, Address address) {
    DRIVER_CALL(context);
    auto found = ranges.find(address);
    if (handle == nullptr || found == ranges.end() || found->second.kind != Kind::kAllocated) return call(kInvalidValue);
    *handle = tell(kOfMemory, found->second.memory->fd);
    return kSuccess;
}

CUDA_API Result cuIpcOpenMemHandle_v2(Address* to, Told handle, unsigned flags) {
    DRIVER_CALL(context);
    if (to == nullptr || flags != 1) return call(kInvalidValue);  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    if (Result refused = told(handle, kOfMemory)) return call(refused);
    std::string link = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
    int fd = open(link.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return call(kMapFailed);
    std::shared_ptr<Memory> memory;
    Result done = Memory::of_descriptor(fd, &memory);
    close(fd);
    if (done != kSuccess) return call(done);
    // Memory that is opened again has the same address.
    for (auto& [address, range] : ranges) {
        if (range.kind != Kind::kOpened || range.memory->inode != memory->inode) continue;
        ++range.times_opened;
        *to = address;
        return kSuccess;
    }
    char* at = map(*memory, nullptr);
    if (at == nullptr) return call(kMapFailed);
    *to = Address(at);
    ranges[*to] = Range{Kind::kOpened, at, memory->bytes, memory, PROT_READ | PROT_WRITE};
    return kSuccess;
}

CUDA_API Result cuIpcOpenMemHandle(Address* to, Told handle, unsigned flags) { return cuIpcOpenMemHandle_v2(to, handle, flags); }

CUDA_API Result cuIpcCloseMemHandle(Address address) {
    DRIVER_CALL(context);
    auto found = ranges.find(address);
    if (found == ranges.end() || found->second.kind != Kind::kOpened) return call(kInvalidValue);
    if (--found->second.times_opened > 0) return kSuccess;
    Result done = finish_all(call.device());
    munmap(found->second.at, found->second.bytes);
    ranges.erase(found);
    return call(done);
}
