// A CUDA driver without a GPU, for tests: a libcuda.so.1 over host memory. Kernels run in the emulator (tests/emulator).
//
// It is as strict as the interface allows. Work on a stream is done as late as it may be: when somebody waits for it. So memory that
// is read or overwritten too early is noticed. Device memory can be accessed only while the driver works, and contains garbage at
// first. What the real driver may accept or refuse, this one refuses. The times that it reports are made up: a launch takes 5 us, and
// for each row of a team (the blocks that work on one row) 4 us + 1 us per block + 2 us per chunk of the row that a block has.
//
// It is set up by the environment:
//
//   FAKE_CUDA_DEVICES          devices, separated by semicolons, each CAPABILITY[,NAME[,UUID[,CARD]]], where a UUID has 32 hexadecimal
//                              digits; default "9.0". By default device N is "Fake GPU N", 0000000000000000000000000000000N.
//                              With CARD it is a slice (MIG) of the card with this UUID.
//   FAKE_CUDA_VERSION          the CUDA version of the driver, as 1000 major + 10 minor; default 13000
//   FAKE_CUDA_MEMORY           bytes of each device, for this process alone; default 1 GiB
//   FAKE_CUDA_MULTIPROCESSORS  multiprocessors of each device; default 4. No cluster of more blocks runs: the driver then says that
//                              0 clusters run at once.
//   FAKE_CUDA_LARGEST_CLUSTER  blocks of the largest cluster that runs; default 8. The driver refuses the size of larger ones.
//   FAKE_CUDA_CALL             microseconds that the host takes for each call; default 0. An idle device begins work when it is
//                              asked for it.
//   FAKE_CUDA_FAULTS           planted faults, separated by commas, each KIND@N=CODE, where CODE is a CUresult:
//                                init      the N-th cuInit fails
//                                allocate  the N-th allocation fails, on the device, pinned, or to be shared
//                                copy      the N-th copy fails when it is done, and so does everything after it
//                                launch    the N-th launch fails when it is done, and so does everything after it
//                                spoil     the N-th launch is done, and one bit of its outputs is wrong (CODE is not used)
//                                leave     the N-th launch is done, but writes no result for its first row (CODE is not used)
//                                hang      the N-th launch never ends (CODE is not used), and `exit` does not end the process
//                                function  the N-th look-up of a function in an image fails
//                                range     the N-th question about where an allocation begins and ends fails
//                                behind    from the N-th on of those launches of a kernel that samples with teams of CODE blocks, in which
//                                          a team takes several rows: all rows after a team's first get wrong tokens
//                                weigh     from the N-th launch on of a kernel that weighs with teams of CODE blocks: all tokens are wrong
//                                weighmore the same, but only for rows after a team's first
//                                rest      from the N-th on of those launches of a kernel that samples with teams of CODE blocks, which
//                                          take the rows that another launch left: all their tokens are wrong
//                                clusters  the N-th question about how many clusters run at once fails
//   FAKE_CUDA_ARMED            a path: calls are counted for faults only while it exists
//   FAKE_CUDA_ANSWERS          a folder: outputs of launches are kept there, and given again for the same inputs
//   FAKE_CUDA_LOG              a path: each call writes a line there, with its result and the process; so does `exit`, when it runs
//                              the driver's work at the end
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define CUDA_API extern "C" __attribute__((visibility("default")))

namespace driver {

#define DRIVER_RESULTS(X)                                                                        \
    X(kSuccess, 0, "CUDA_SUCCESS", "no error")                                                   \
    X(kInvalidValue, 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument")                          \
    X(kOutOfMemory, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")                              \
    X(kNotInitialized, 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error")                  \
    X(kNoDevice, 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")              \
    X(kStubLibrary, 34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library")              \
    X(kInvalidDevice, 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")                \
    X(kInvalidImage, 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid")          \
    X(kInvalidContext, 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context")              \
    X(kMapFailed, 205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed")               \
    X(kNoBinary, 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device") \
    X(kEccUncorrectable, 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered") \
    X(kUnsupportedPtx, 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain.") \
    X(kContained, 226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error") \
    X(kInvalidHandle, 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle")               \
    X(kNotFound, 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found")                          \
    X(kNotReady, 600, "CUDA_ERROR_NOT_READY", "device not ready")                                \
    X(kIllegalAddress, 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered") \
    X(kLaunchTimeout, 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated")  \
    X(kLaunchFailed, 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure")              \
    X(kCooperativeTooLarge, 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch") \
    X(kTensorMemoryLeak, 721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "Tensor Memory not completely freed at the end of kernel") \
    X(kNotSupported, 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported")                 \
    X(kSystemNotReady, 802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized")         \
    X(kSystemMismatch, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination") \
    X(kInvalidCluster, 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "Invalid cluster size")           \
    X(kUnknown, 999, "CUDA_ERROR_UNKNOWN", "unknown error")

enum Result : int {
#define DRIVER_RESULT(name, code, symbol, text) name = code,
    DRIVER_RESULTS(DRIVER_RESULT)
#undef DRIVER_RESULT
};

using Address = unsigned long long;  // CUdeviceptr

// A device with its primary context, which are one object here.
struct Device {
    int ordinal = 0;
    std::string name;
    uint8_t uuid[16] = {};
    // The UUID of the card that the device is a slice of; otherwise the same as `uuid`.
    uint8_t card[16] = {};
    int major = 0, minor = 0;
    size_t used = 0;
    unsigned retained = 0;
    // The error that persists once something went wrong.
    Result broken = kSuccess;
    // The device's clock, which advances only with its work, so that events report the same times in each run.
    double microseconds = 0;
    // Whether it has come to a launch that never ends.
    bool hangs = false;
};

enum class Fault { kInit, kAllocate, kCopy, kLaunch, kSpoil, kLeave, kHang, kFunction, kRange, kClusters, kBehind, kWeigh, kWeighMore, kRest };

struct Config {
    std::vector<std::unique_ptr<Device>> devices;
    int version;
    size_t memory;
    int multiprocessors, largest_cluster;
    double call_microseconds;
    // The host's clock. It advances with each call and, when somebody waits for a device, to that device's time.
    double microseconds = 0;

    static Config& get();  // read once
    // Whether a fault was planted at this call, and its result. Each call counts.
    bool is_planted(Fault fault, Result* result);
    // The same for faults that stay. Only calls with this code count.
    bool stays_planted(Fault fault, int code);
};

// One call into the driver; calls are made one at a time. Constructed first in each function.
class Call {
  public:
    explicit Call(const char* name);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // The error with which a call is refused if it needs cuInit, or a current context that is not broken.
    Result initialised();
    Result context();
    // Notes the result for the log.
    Result operator()(Result done) { return result = done; }

    // The result of a wait. For a launch that never ends, this waits for ever, and others may call meanwhile.
    Result waited(Result done);

    Device& device() const { return *current(); }
    static Device*& current();

  private:
    const char* name;
    Result result = kSuccess;
    std::unique_lock<std::recursive_mutex> lock;
};

// Every function begins with this: it takes the lock, and continues only if the call may be made.
#define DRIVER_CALL(needs)                                            \
    driver::Call call(__func__);                                      \
    if (driver::Result refused = call.needs()) return call(refused)

Device* device_at(int ordinal);
// The most shared memory that a block may ask for.
int most_shared_bytes(const Device& device);
std::string hex(const uint8_t (&uuid)[16]);

// Does all work that a device was asked for. Returns the error, which then persists, or kNotReady if something never ends.
Result finish_all(Device& device);

}  // namespace driver
