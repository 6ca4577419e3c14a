// The memory that there is, on devices and pinned. All device memory is in memfds, so that it can be shared with another process.
#pragma once
#include <sys/mman.h>

#include "driver.hpp"

namespace driver {

constexpr size_t kGranularity = 2 << 20;

// Memory of a device, held by whatever maps it.
struct Memory {
    int fd = -1;
    size_t bytes = 0;
    Device* device = nullptr;
    // Whether this process, not another, has taken it from the device.
    bool is_counted = false;
    int handle_types = 0;
    uint64_t inode = 0;  // the same in all processes

    ~Memory();
    // Creates memory of so many bytes, with garbage in it.
    static Result create(Device& device, size_t bytes, std::shared_ptr<Memory>* to);
    // Memory that another process, or this one, created. The descriptor stays the caller's.
    static Result of_descriptor(int fd, std::shared_ptr<Memory>* to);
};

enum class Kind { kAllocated, kMapped, kOpened, kPinned };

// Memory at an address.
struct Range {
    Kind kind;
    char* at;
    size_t bytes;
    std::shared_ptr<Memory> memory;  // none if pinned
    int access;                      // PROT_* while the driver works
    unsigned times_opened = 1;
    int pages = PROT_NONE;           // the present protection of its pages, for threads that have the key
};

// All ranges, by address.
extern std::map<Address, Range> ranges;
// Bytes of the last copy from the host to an address; 0 if a copy from the device into the same range came after it.
extern std::map<Address, size_t> uploaded;

// The range that holds an address, if any.
Range* range_of(Address address);
// Maps memory at `place`, or anywhere. Only the driver may access it. Null if the system refuses.
char* map(const Memory& memory, void* place);
// Whether all these bytes are on a device and allow this access.
bool is_on_device(Address address, size_t bytes, int access);
bool is_pinned(const void* address, size_t bytes);
// Counts an allocation, for planted faults.
Result may_allocate(Device& device, size_t bytes);

// While one exists, device memory can be accessed.
class Opened {
  public:
    Opened() { protect(true); }
    ~Opened() { protect(false); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

  private:
    static void protect(bool is_open);
};

}  // namespace driver
