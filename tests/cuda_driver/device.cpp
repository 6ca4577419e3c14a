// Set-up, devices, contexts, the names of errors.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "driver.hpp"

namespace driver {
namespace {

bool is_initialised = false;

const char* setting(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value != nullptr ? value : otherwise;
}

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
    return parts;
}

std::unique_ptr<Device> read_device(const std::string& text, int ordinal) {
    auto device = std::make_unique<Device>();
    std::vector<std::string> parts = split(text, ',');
    device->ordinal = ordinal;
    device->name = parts.size() > 1 ? parts[1] : "Fake GPU " + std::to_string(ordinal);
    device->uuid[15] = uint8_t(ordinal);
    bool is_read = sscanf(parts.at(0).c_str(), "%d.%d", &device->major, &device->minor) == 2;
    auto read_uuid = [&](const std::string& digits, uint8_t (&to)[16]) {
        for (size_t i = 0; i < 16; ++i) is_read = is_read && digits.size() == 32 && sscanf(&digits[2 * i], "%2hhx", &to[i]) == 1;
    };
    if (parts.size() > 2) read_uuid(parts[2], device->uuid);
    memcpy(device->card, device->uuid, sizeof device->card);
    if (parts.size() > 3) read_uuid(parts[3], device->card);
    if (!is_read) {
        fprintf(stderr, "FAKE_CUDA_DEVICES: %s\n", text.c_str());
        abort();
    }
    return device;
}

struct Planted {
    Fault fault;
    uint64_t at;
    Result result;
};

std::vector<Planted> read_faults() {
    static const char* const kNames[] = {"init", "allocate", "copy", "launch", "spoil", "leave", "hang", "function", "range", "clusters", "behind", "weigh", "weighmore", "rest"};
    std::vector<Planted> faults;
    for (const std::string& text : split(setting("FAKE_CUDA_FAULTS", ""), ',')) {
        char name[16] = {};
        unsigned long long at = 0;
        int code = 0, kind = 0;
        bool is_read = sscanf(text.c_str(), "%15[a-z]@%llu=%d", name, &at, &code) == 3;
        constexpr int kKinds = sizeof kNames / sizeof *kNames;
        while (kind < kKinds && strcmp(name, kNames[kind]) != 0) ++kind;
        if (!is_read || kind == kKinds) {
            fprintf(stderr, "FAKE_CUDA_FAULTS: %s\n", text.c_str());
            abort();
        }
        faults.push_back(Planted{Fault(kind), at, Result(code)});
    }
    return faults;
}

// Like the real driver, this one ends with the process if that ends by `exit`, and not before its devices have finished.
void at_exit() {
    Call call("exit");
    for (const auto& device : Config::get().devices) {
        if (device->hangs) call.waited(kNotReady);
    }
}

std::recursive_mutex& mutex() {
    static std::recursive_mutex mutex;
    return mutex;
}

}  // namespace

Config& Config::get() {
    static Config config = [] {
        Config read;
        for (const std::string& text : split(setting("FAKE_CUDA_DEVICES", "9.0"), ';')) {
            read.devices.push_back(read_device(text, int(read.devices.size())));
        }
        read.version = atoi(setting("FAKE_CUDA_VERSION", "13000"));
        read.memory = strtoull(setting("FAKE_CUDA_MEMORY", "1073741824"), nullptr, 10);
        read.multiprocessors = atoi(setting("FAKE_CUDA_MULTIPROCESSORS", "4"));
        read.largest_cluster = atoi(setting("FAKE_CUDA_LARGEST_CLUSTER", "8"));
        read.call_microseconds = atof(setting("FAKE_CUDA_CALL", "0"));
        return read;
    }();
    return config;
}

namespace {
// If `of` is not null, calls are counted for each of its values, and faults stay.
const Planted* planted_now(Fault fault, const int* of) {
    static const std::vector<Planted> faults = read_faults();
    static std::map<std::pair<Fault, int>, uint64_t> calls;
    const char* armed = getenv("FAKE_CUDA_ARMED");
    if (armed != nullptr && access(armed, F_OK) != 0) return nullptr;
    uint64_t now = ++calls[{fault, of != nullptr ? *of : 0}];
    for (const Planted& planted : faults) {
        bool is_now = of == nullptr ? planted.at == now : planted.at <= now && *of == int(planted.result);
        if (planted.fault == fault && is_now) return &planted;
    }
    return nullptr;
}
}  // namespace

bool Config::is_planted(Fault fault, Result* result) {
    const Planted* planted = planted_now(fault, nullptr);
    if (planted != nullptr) *result = planted->result;
    return planted != nullptr;
}

bool Config::stays_planted(Fault fault, int code) { return planted_now(fault, &code) != nullptr; }

Call::Call(const char* name) : name(name), lock(mutex()) { Config::get().microseconds += Config::get().call_microseconds; }

Call::~Call() {
    static const char* const path = getenv("FAKE_CUDA_LOG");
    if (path == nullptr) return;
    static const int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log >= 0) dprintf(log, "%d %s %d\n", int(getpid()), name, int(result));
}

Result Call::initialised() { return is_initialised ? kSuccess : kNotInitialized; }

Result Call::context() {
    if (!is_initialised) return kNotInitialized;
    Device* device = current();
    if (device == nullptr || device->retained == 0) return kInvalidContext;
    return device->broken;
}

Result Call::waited(Result done) {
    if (done != kNotReady) return result = done;
    lock.unlock();
    for (;;) pause();
}

Device*& Call::current() {
    static thread_local Device* device = nullptr;
    return device;
}

Device* device_at(int ordinal) {
    auto& devices = Config::get().devices;
    return ordinal >= 0 && size_t(ordinal) < devices.size() ? devices[size_t(ordinal)].get() : nullptr;
}

int most_shared_bytes(const Device& device) {
    if (device.major == 8) return (device.minor == 0 || device.minor == 7 ? 163 : 99) << 10;
    return (device.major == 7 ? 64 : device.major == 12 ? 99 : 227) << 10;
}

std::string hex(const uint8_t (&uuid)[16]) {
    char text[33];
    for (size_t i = 0; i < 16; ++i) snprintf(text + 2 * i, 3, "%02x", uuid[i]);
    return text;
}

}  // namespace driver

using namespace driver;

CUDA_API Result cuInit(unsigned flags) {
    Call call(__func__);
    Result planted;
    if (flags != 0) return call(kInvalidValue);
    if (Config::get().is_planted(Fault::kInit, &planted)) return call(planted);
    if (Config::get().devices.empty()) return call(kNoDevice);
    if (!is_initialised) atexit(at_exit);
    is_initialised = true;
    return kSuccess;
}

CUDA_API Result cuDriverGetVersion(int* version) {
    Call call(__func__);
    *version = Config::get().version;
    return kSuccess;
}

CUDA_API Result cuDeviceGetCount(int* count) {
    DRIVER_CALL(initialised);
    *count = int(Config::get().devices.size());
    return kSuccess;
}

CUDA_API Result cuDeviceGet(int* device, int ordinal) {
    DRIVER_CALL(initialised);
    if (device_at(ordinal) == nullptr) return call(kInvalidDevice);
    *device = ordinal;
    return kSuccess;
}

CUDA_API Result cuDeviceGetName(char* name, int bytes, int ordinal) {
    DRIVER_CALL(initialised);
    Device* device = device_at(ordinal);
    if (device == nullptr) return call(kInvalidDevice);
    if (bytes <= 0) return call(kInvalidValue);
    snprintf(name, size_t(bytes), "%s", device->name.c_str());
    return kSuccess;
}

CUDA_API Result cuDeviceGetUuid_v2(void* uuid, int ordinal) {
    DRIVER_CALL(initialised);
    Device* device = device_at(ordinal);
    if (device == nullptr) return call(kInvalidDevice);
    memcpy(uuid, device->uuid, sizeof device->uuid);
    return kSuccess;
}

// The older function does not know slices.
CUDA_API Result cuDeviceGetUuid(void* uuid, int ordinal) {
    DRIVER_CALL(initialised);
    Device* device = device_at(ordinal);
    if (device == nullptr) return call(kInvalidDevice);
    memcpy(uuid, device->card, sizeof device->card);
    return kSuccess;
}

CUDA_API Result cuDeviceTotalMem_v2(size_t* bytes, int ordinal) {
    DRIVER_CALL(initialised);
    if (device_at(ordinal) == nullptr) return call(kInvalidDevice);
    *bytes = Config::get().memory;
    return kSuccess;
}

CUDA_API Result cuDeviceGetAttribute(int* value, int attribute, int ordinal) {
    DRIVER_CALL(initialised);
    Device* device = device_at(ordinal);
    if (device == nullptr) return call(kInvalidDevice);
    switch (attribute) {
        case 16: *value = Config::get().multiprocessors; return kSuccess;  // MULTIPROCESSOR_COUNT
        case 41: *value = 1; return kSuccess;                              // UNIFIED_ADDRESSING
        case 75: *value = device->major; return kSuccess;                  // COMPUTE_CAPABILITY_MAJOR
        case 76: *value = device->minor; return kSuccess;                  // COMPUTE_CAPABILITY_MINOR
        case 95: *value = 1; return kSuccess;                              // COOPERATIVE_LAUNCH
        case 97: *value = most_shared_bytes(*device); return kSuccess;    // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        case 102: *value = 1; return kSuccess;                             // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        case 103: *value = 1; return kSuccess;                             // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        default: return call(kInvalidValue);
    }
}

CUDA_API Result cuDevicePrimaryCtxRetain(Device** context, int ordinal) {
    DRIVER_CALL(initialised);
    Device* device = device_at(ordinal);
    if (device == nullptr) return call(kInvalidDevice);
    ++device->retained;
    *context = device;
    return kSuccess;
}

CUDA_API Result cuDevicePrimaryCtxRelease_v2(int ordinal) {
    DRIVER_CALL(initialised);
    Device* device = device_at(ordinal);
    if (device == nullptr) return call(kInvalidDevice);
    if (device->retained == 0) return call(kInvalidContext);
    --device->retained;
    return kSuccess;
}

CUDA_API Result cuCtxSetCurrent(Device* context) {
    DRIVER_CALL(initialised);
    if (context != nullptr && context != device_at(context->ordinal)) return call(kInvalidContext);
    Call::current() = context;
    return kSuccess;
}

CUDA_API Result cuCtxGetCurrent(Device** context) {
    DRIVER_CALL(initialised);
    *context = Call::current();
    return kSuccess;
}

CUDA_API Result cuCtxGetDevice(int* ordinal) {
    DRIVER_CALL(context);
    *ordinal = call.device().ordinal;
    return kSuccess;
}

CUDA_API Result cuCtxSynchronize() {
    DRIVER_CALL(context);
    return call.waited(finish_all(call.device()));
}

namespace {
struct Named {
    Result code;
    const char *name, *text;
};
const Named* named(Result code) {
    static const Named kNamed[] = {
#define DRIVER_RESULT(name, code, symbol, text) {name, symbol, text},
        DRIVER_RESULTS(DRIVER_RESULT)
#undef DRIVER_RESULT
    };
    for (const Named& known : kNamed) {
        if (known.code == code) return &known;
    }
    return nullptr;
}
}  // namespace

CUDA_API Result cuGetErrorName(Result code, const char** name) {
    const Named* known = named(code);
    *name = known != nullptr ? known->name : nullptr;
    return known != nullptr ? kSuccess : kInvalidValue;
}

CUDA_API Result cuGetErrorString(Result code, const char** text) {
    const Named* known = named(code);
    *text = known != nullptr ? known->text : nullptr;
    return known != nullptr ? kSuccess : kInvalidValue;
}
