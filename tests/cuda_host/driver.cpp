// Checks that the driver without a GPU behaves as documented. tests/cuda_host/driver.rs runs each check by name; the program ends with 0 if
// the check passes.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

using Address = unsigned long long;
struct Handle {
    char bytes[64];
};
struct Location {
    int type, id;
};
struct Properties {
    int type, handle_types;
    Location location;
    void* windows;
    unsigned char flags[8];
};
struct Access {
    Location location;
    int flags;
};

}  // namespace

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuMemAlloc_v2(Address*, size_t);
int cuMemFree_v2(Address);
int cuMemHostAlloc(void**, size_t, unsigned);
int cuMemHostGetDevicePointer_v2(Address*, void*, unsigned);
int cuMemGetInfo_v2(size_t*, size_t*);
int cuMemcpyHtoD_v2(Address, const void*, size_t);
int cuMemcpyDtoH_v2(void*, Address, size_t);
int cuMemcpyDtoHAsync_v2(void*, Address, size_t, void*);
int cuMemsetD8_v2(Address, unsigned char, size_t);
int cuMemsetD8Async(Address, unsigned char, size_t, void*);
int cuStreamCreate(void**, unsigned);
int cuStreamSynchronize(void*);
int cuStreamQuery(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventRecord(void*, void*);
int cuEventSynchronize(void*);
int cuMemGetAllocationGranularity(size_t*, const Properties*, int);
int cuMemCreate(uint64_t*, size_t, const Properties*, unsigned long long);
int cuMemRelease(uint64_t);
int cuMemExportToShareableHandle(void*, uint64_t, int, unsigned long long);
int cuMemImportFromShareableHandle(uint64_t*, void*, int);
int cuMemAddressReserve(Address*, size_t, size_t, Address, unsigned long long);
int cuMemAddressFree(Address, size_t);
int cuMemMap(Address, size_t, size_t, uint64_t, unsigned long long);
int cuMemUnmap(Address, size_t);
int cuMemSetAccess(Address, size_t, const Access*, size_t);
int cuIpcGetMemHandle(Handle*, Address);
int cuIpcOpenMemHandle_v2(Address*, Handle, unsigned);
int cuIpcCloseMemHandle(Address);
}

namespace {

enum { kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kInvalidContext = 201, kNotReady = 600, kIllegalAddress = 700 };

#define EXPECT(what, code)                                                                      \
    do {                                                                                        \
        int result = what;                                                                      \
        if (result != (code)) fprintf(stderr, "line %d: " #what " is %d\n", __LINE__, result), _exit(1); \
    } while (false)
#define OK(what) EXPECT(what, 0)
#define HOLDS(what) EXPECT(!(what), 0)

constexpr size_t kBytes = 4 << 20;
constexpr Properties kShared = {1, 1, {1, 0}, nullptr, {}};
constexpr Access kBoth = {{1, 0}, 3};

void begin() {
    void* context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

Address mapped(uint64_t handle) {
    Address at;
    OK(cuMemAddressReserve(&at, kBytes, 0, 0, 0));
    OK(cuMemMap(at, kBytes, 0, handle, 0));
    OK(cuMemSetAccess(at, kBytes, &kBoth, 1));
    return at;
}

void send_descriptor(int socket, int fd) {
    char data = 'x', control[CMSG_SPACE(sizeof fd)] = {};
    iovec vector{&data, 1};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    *header = cmsghdr{CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    HOLDS(sendmsg(socket, &message, 0) == 1);
}

int receive_descriptor(int socket) {
    char data, control[CMSG_SPACE(sizeof(int))];
    iovec vector{&data, 1};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    HOLDS(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != nullptr);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

// Runs a second process at the other end of a socket.
void with_another(void (*here)(int), void (*there)(int)) {
    int ends[2], status = 0;
    HOLDS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        begin();
        there(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    begin();
    here(ends[0]);
    close(ends[0]);
    HOLDS(waitpid(child, &status, 0) == child && status == 0);
}

void by_descriptor() {
    with_another(
        [](int socket) {
            uint64_t handle;
            int fd = -1;
            char seen[6] = {}, done;
            OK(cuMemCreate(&handle, kBytes, &kShared, 0));
            Address at = mapped(handle);
            OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
            OK(cuMemRelease(handle));  // the mapping keeps it
            send_descriptor(socket, fd);
            HOLDS(read(socket, &done, 1) == 1);
            OK(cuMemcpyDtoH_v2(seen, at + kBytes - 6, 6));
            HOLDS(memcmp(seen, "there", 6) == 0);
            OK(cuMemUnmap(at, kBytes));
            OK(cuMemAddressFree(at, kBytes));
        },
        [](int socket) {
            uint64_t handle;
            int fd = receive_descriptor(socket);
            OK(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t(fd)), 1));
            close(fd);
            Address at = mapped(handle);
            OK(cuMemcpyHtoD_v2(at + kBytes - 6, "there", 6));
            HOLDS(write(socket, "x", 1) == 1);
        });
}

void by_handle() {
    with_another(
        [](int socket) {
            Address at, again;
            Handle handle;
            char seen[6] = {}, done;
            OK(cuMemAlloc_v2(&at, kBytes));
            EXPECT(cuIpcGetMemHandle(&handle, at + 1), kInvalidValue);
            OK(cuIpcGetMemHandle(&handle, at));
            EXPECT(cuIpcOpenMemHandle_v2(&again, handle, 1), kInvalidContext);
            HOLDS(write(socket, &handle, sizeof handle) == sizeof handle);
            HOLDS(read(socket, &done, 1) == 1);
            OK(cuMemcpyDtoH_v2(seen, at, 6));
            HOLDS(memcmp(seen, "there", 6) == 0);
        },
        [](int socket) {
            Address at, again;
            Handle handle;
            HOLDS(read(socket, &handle, sizeof handle) == sizeof handle);
            EXPECT(cuIpcOpenMemHandle_v2(&at, handle, 0), kInvalidValue);
            OK(cuIpcOpenMemHandle_v2(&at, handle, 1));
            OK(cuIpcOpenMemHandle_v2(&again, handle, 1));
            HOLDS(at == again);
            OK(cuIpcCloseMemHandle(at));
            OK(cuMemcpyHtoD_v2(at, "there", 6));
            OK(cuIpcCloseMemHandle(at));
            EXPECT(cuMemcpyHtoD_v2(at, "there", 6), kInvalidValue);
            HOLDS(write(socket, "x", 1) == 1);
        });
}

void mistakes() {
    Address at;
    uint64_t handle;
    size_t bytes, total;
    EXPECT(cuMemAlloc_v2(&at, 1), kNotInitialized);
    OK(cuInit(0));
    EXPECT(cuMemAlloc_v2(&at, 1), kInvalidContext);
    begin();
    OK(cuMemGetAllocationGranularity(&bytes, &kShared, 0));
    EXPECT(cuMemCreate(&handle, bytes + 1, &kShared, 0), kInvalidValue);
    OK(cuMemGetInfo_v2(&bytes, &total));
    EXPECT(cuMemCreate(&handle, total + kBytes, &kShared, 0), kOutOfMemory);
    EXPECT(cuMemAlloc_v2(&at, total + 1), kOutOfMemory);
    OK(cuMemCreate(&handle, kBytes, &kShared, 0));
    OK(cuMemAddressReserve(&at, kBytes, 0, 0, 0));
    EXPECT(cuMemMap(at + kBytes, kBytes, 0, handle, 0), kInvalidValue);
    OK(cuMemMap(at, kBytes, 0, handle, 0));
    EXPECT(cuMemMap(at, kBytes, 0, handle, 0), kInvalidValue);
    EXPECT(cuMemcpyHtoD_v2(at, "x", 1), kInvalidValue);  // the memory has no access yet
    OK(cuMemSetAccess(at, kBytes, &kBoth, 1));
    OK(cuMemcpyHtoD_v2(at, "x", 1));
    EXPECT(cuMemcpyHtoD_v2(at + kBytes - 1, "xy", 2), kInvalidValue);
    EXPECT(cuMemAddressFree(at, kBytes), kInvalidValue);
    EXPECT(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t(0)), 1), kInvalidValue);
    EXPECT(cuMemFree_v2(at), kInvalidValue);
}

// Work on a stream is done when somebody waits for it.
void as_late_as_it_may() {
    begin();
    void *stream, *other, *event, *memory;
    Address at;
    OK(cuStreamCreate(&stream, 1));
    OK(cuStreamCreate(&other, 1));
    OK(cuEventCreate(&event, 2));
    OK(cuMemAlloc_v2(&at, kBytes));
    OK(cuMemHostAlloc(&memory, kBytes, 0));
    Address pinned;
    OK(cuMemHostGetDevicePointer_v2(&pinned, memory, 0));
    HOLDS(pinned == Address(memory));
    EXPECT(cuMemHostGetDevicePointer_v2(&pinned, &pinned, 0), kInvalidValue);
    char* seen = static_cast<char*>(memory);
    seen[0] = 0;
    OK(cuMemcpyDtoHAsync_v2(seen, at, 1, stream));
    OK(cuStreamSynchronize(stream));
    HOLDS(seen[0] != 0);  // no copy has written there yet
    OK(cuMemsetD8Async(at, 7, kBytes, stream));
    OK(cuEventRecord(event, stream));
    OK(cuMemcpyDtoHAsync_v2(seen, at, 1, stream));
    HOLDS(seen[0] != 7);
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuMemsetD8Async(at, 8, kBytes, other));
    OK(cuStreamSynchronize(other));
    OK(cuStreamSynchronize(stream));
    HOLDS(seen[0] == 8);
    OK(cuMemsetD8_v2(at, 9, kBytes));  // may return before it is done
    OK(cuMemcpyDtoHAsync_v2(seen, at, 1, stream));
    OK(cuStreamSynchronize(stream));
    HOLDS(seen[0] == 8);
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoHAsync_v2(seen, at, 1, stream));
    EXPECT(cuStreamQuery(stream), kNotReady);
    OK(cuStreamQuery(stream));
    HOLDS(seen[0] == 9);
}

// With FAKE_CUDA_FAULTS=copy@2=700: the second copy fails, and so does everything after it.
void sticky() {
    begin();
    Address at;
    OK(cuMemAlloc_v2(&at, kBytes));
    OK(cuMemcpyHtoD_v2(at, "x", 1));
    EXPECT(cuMemcpyHtoD_v2(at, "x", 1), kIllegalAddress);
    EXPECT(cuMemcpyHtoD_v2(at, "x", 1), kIllegalAddress);
    EXPECT(cuMemAlloc_v2(&at, kBytes), kIllegalAddress);
    EXPECT(cuCtxSynchronize(), kIllegalAddress);
}

// Ends with a signal: the host may not access device memory.
void host_reads_the_device() {
    begin();
    Address at;
    OK(cuMemAlloc_v2(&at, kBytes));
    OK(cuMemcpyHtoD_v2(at, "x", 1));
    volatile char seen = *reinterpret_cast<char*>(at);
    (void)seen;
}

constexpr struct {
    const char* name;
    void (*run)();
} kChecks[] = {{"by_descriptor", by_descriptor},         {"by_handle", by_handle},
               {"mistakes", mistakes},                   {"as_late_as_it_may", as_late_as_it_may},
               {"sticky", sticky},                       {"host_reads_the_device", host_reads_the_device}};

}  // namespace

int main(int count, char** arguments) {
    for (const auto& check : kChecks) {
        if (count == 1) puts(check.name);
        if (count == 2 && strcmp(arguments[1], check.name) == 0) return check.run(), 0;
    }
    return count == 1 ? 0 : 2;
}
