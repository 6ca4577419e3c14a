// What memory there is, on devices and pinned. Everything on a device lies in a memfd, so that another process can have it.
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
    // Taken from the device by this process, not by another.
    bool is_counted = false;
    int handle_types = 0;
    uint64_t inode = 0;  // one for all processes

    ~Memory();
    // Of so many bytes, full of what nobody wrote.
    static Result create(Device& device, size_t bytes, std::shared_ptr<Memory>* to);
    // What another process, or this one, created; the descriptor stays the caller's.
    static Result of_descriptor(int fd, std::shared_ptr<Memory>* to);
};

enum class Kind { kAllocated, kMapped, kOpened, kPinned };

// Memory at an address.
struct Range {
    Kind kind;
    char* at;
    size_t bytes;
    std::shared_ptr<Memory> memory;  // none if pinned
    int access;                      // PROT_*, while the driver works
    unsigned times_opened = 1;
    int pages = PROT_NONE;           // what its pages may be used for now, by who has the key
};

// By address.
extern std::map<Address, Range> ranges;
// Bytes of the last copy from the host to an address; 0 where another from the device into the same range came behind it.
extern std::map<Address, size_t> uploaded;

// The range that holds an address, if any.
Range* range_of(Address address);
// Maps memory at a place, or anywhere; nobody may touch it but the driver. Null if the system refuses.
char* map(const Memory& memory, void* place);
// Whether all these bytes are on a device and may be used so.
bool is_on_device(Address address, size_t bytes, int access);
bool is_pinned(const void* address, size_t bytes);
// Counts an allocation, for planted faults.
Result may_allocate(Device& device, size_t bytes);

// While one exists, device memory can be touched.
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
