// Modules, functions, launches.
#include "launch.hpp"

#include <algorithm>
#include <cstring>

#include "answers.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace driver {
namespace {

struct Function {
    Kernel kernel;
    Device* device;
    unsigned most_shared_bytes = 48 << 10;
    int shared_percent = -1;
};

struct Module {
    std::vector<Function> functions;
};

std::vector<std::unique_ptr<Module>> modules;

// Images with machine code. There is one of CUDA 13.0, for compute capabilities 8, 9 and 10, and one of CUDA 12.2, an ELF file that
// says which GPU it is for (scripts/kernels).
constexpr unsigned kFatbinMagic = 0xBA55ED50, kElfMagic = 0x464C457F;
constexpr int kFatbinVersion = 13000, kFirstMajor = 8, kLastMajor = 10;
constexpr int kElfVersion = 12020, kElfFlagsPlace = 48;

enum class Image { kNone, kFatbin, kElf, kPtx };

Image kind_of(const void* image) {
    unsigned magic;
    memcpy(&magic, image, sizeof magic);
    if (magic == kFatbinMagic) return Image::kFatbin;
    if (magic == kElfMagic) return Image::kElf;
    return strstr(static_cast<const char*>(image), ".version") != nullptr ? Image::kPtx : Image::kNone;
}

// Whether the image has code that the driver reads and the device runs.
bool has_code(Image kind, const void* image, const Device& device) {
    int version = Config::get().version;
    if (kind == Image::kFatbin) return version >= kFatbinVersion && device.major >= kFirstMajor && device.major <= kLastMajor;
    if (kind == Image::kPtx) return true;
    unsigned flags;
    memcpy(&flags, static_cast<const char*>(image) + kElfFlagsPlace, sizeof flags);
    int compiled_for = flags & 0xFF;
    return version >= kElfVersion && compiled_for / 10 == device.major && compiled_for % 10 <= device.minor;
}

struct LaunchAttribute {
    int id;
    int unused;
    union {
        struct {
            unsigned x, y, z;
        } cluster;
        int cooperative;
        char bytes[64];
    };
};

struct LaunchConfig {  // CUlaunchConfig
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
    const LaunchAttribute* attributes;
    unsigned attribute_count;
};

// The size of a row's result, and the place of the token in it (kernels/params.cuh).
constexpr size_t kResultBytes = 48, kTokenPlace = 28;

constexpr int kCooperative = 2, kClusterDimension = 4;

template <class T>
T argument(void** arguments, size_t i) {
    T value;
    memcpy(&value, arguments[i], sizeof value);
    return value;
}

// Whether the blocks of a team (those that work on one row) can wait for each other, by the launch's attributes.
Result check_teams(const LaunchConfig& config, const Function& function) {
    bool is_cooperative = false;
    unsigned cluster = 1;
    for (unsigned i = 0; i < config.attribute_count; ++i) {
        const LaunchAttribute& attribute = config.attributes[i];
        if (attribute.id == kCooperative) is_cooperative = attribute.cooperative != 0;
        if (attribute.id == kClusterDimension) cluster = attribute.cluster.x * attribute.cluster.y * attribute.cluster.z;
    }
    unsigned team_size = config.grid[0], blocks = config.grid[0] * config.grid[1];
    unsigned largest = unsigned(std::min(Config::get().largest_cluster, Config::get().multiprocessors));
    if (cluster > largest || (cluster > 1 && function.device->major < 9)) return kInvalidCluster;
    if (config.grid[0] % cluster != 0) return kInvalidValue;
    if (is_cooperative && blocks > unsigned(Config::get().multiprocessors)) return kCooperativeTooLarge;
    // Otherwise a GPU would wait for ever, or read memory that is not there.
    bool can_meet = team_size == 1 || (function.kernel.has_clusters ? cluster == team_size : is_cooperative);
    return can_meet ? kSuccess : kInvalidValue;
}

double microseconds(const Grid& grid, const Arguments& told) {
    unsigned in_turn = (told.rows - told.first + grid.teams - 1) / grid.teams;
    return 5 + in_turn * (4.0 + grid.team_size + 2.0 * told.slice_chunks);
}

// Whether the kernel writes rows of a draft model into the inputs of the next launch.
bool spreads(const Kernel& kernel) { return strncmp(kernel.name, "spread", 6) == 0; }

// Makes the tokens of the rows from this one on wrong.
void spoil_from(unsigned row, const Arguments& told) {
    auto results = reinterpret_cast<unsigned char*>(told.outputs);
    for (; row < told.rows; ++row) results[row * kResultBytes + kTokenPlace] ^= 1;
}

Result launch(const Function& function, const Grid& grid, const Arguments& arguments) {
    Result planted;
    if (Config::get().is_planted(Fault::kLaunch, &planted)) return planted;
    if (Config::get().is_planted(Fault::kHang, &planted)) {
        function.device->hangs = true;
        return kNotReady;
    }
    Opened opened;
    if (spreads(function.kernel)) {
        function.kernel.run(grid, arguments);
        return kSuccess;
    }
    // The result of the first row, which always has one.
    auto result = reinterpret_cast<unsigned char*>(arguments.outputs);
    const std::string before(reinterpret_cast<char*>(result), kResultBytes);
    run_or_remember(function.kernel, grid, arguments);
    function.device->microseconds += microseconds(grid, arguments);
    if (Config::get().is_planted(Fault::kSpoil, &planted)) result[kTokenPlace] ^= 1;
    bool weighs = strncmp(function.kernel.name, "weigh", 5) == 0, has_more = arguments.rows > arguments.first + grid.teams;
    auto stays = [&](Fault fault) { return Config::get().stays_planted(fault, int(grid.team_size)); };
    if (has_more && stays(weighs ? Fault::kWeighMore : Fault::kBehind)) spoil_from(arguments.first + grid.teams, arguments);
    if (arguments.first > 0 && !weighs && stays(Fault::kRest)) spoil_from(arguments.first, arguments);
    if (weighs && stays(Fault::kWeigh)) spoil_from(arguments.first, arguments);
    if (Config::get().is_planted(Fault::kLeave, &planted)) memcpy(result, before.data(), before.size());
    return kSuccess;
}

}  // namespace
}  // namespace driver

using namespace driver;

CUDA_API Result cuModuleLoadData(Module** to, const void* image) {
    DRIVER_CALL(context);
    if (to == nullptr || image == nullptr) return call(kInvalidValue);
    Device& device = call.device();
    Image kind = kind_of(image);
    if (kind == Image::kNone) return call(kInvalidImage);
    if (!has_code(kind, image, device)) return call(kNoBinary);
    bool has_clusters = kind != Image::kPtx && device.major >= 9;
    auto module = std::make_unique<Module>();
    for (Kernel& kernel : has_clusters ? clustered_kernels() : cooperative_kernels()) {
        module->functions.push_back(Function{std::move(kernel), &device});
    }
    *to = module.get();
    modules.push_back(std::move(module));
    return kSuccess;
}

CUDA_API Result cuModuleUnload(Module*) {
    DRIVER_CALL(context);
    return call(finish_all(call.device()));
}

CUDA_API Result cuModuleGetFunction(Function** to, Module* module, const char* name) {
    DRIVER_CALL(context);
    if (to == nullptr || module == nullptr || name == nullptr) return call(kInvalidValue);
    Result planted;
    if (Config::get().is_planted(Fault::kFunction, &planted)) return call(planted);
    for (Function& function : module->functions) {
        if (strcmp(function.kernel.name, name) != 0) continue;
        *to = &function;
        return kSuccess;
    }
    return call(kNotFound);
}

CUDA_API Result cuFuncSetAttribute(Function* function, int attribute, int value) {
    DRIVER_CALL(context);
    if (attribute == 8) {  // MAX_DYNAMIC_SHARED_SIZE_BYTES
        if (value < 0 || value > most_shared_bytes(*function->device)) return call(kInvalidValue);
        function->most_shared_bytes = unsigned(value);
    } else if (attribute == 9) {  // PREFERRED_SHARED_MEMORY_CARVEOUT
        if (value < -1 || value > 100) return call(kInvalidValue);
        function->shared_percent = value;
    } else {
        return call(kInvalidValue);
    }
    return kSuccess;
}

CUDA_API Result cuFuncGetAttribute(int* value, int attribute, Function* function) {
    DRIVER_CALL(context);
    if (attribute == 0) *value = int(function->kernel.threads);  // MAX_THREADS_PER_BLOCK
    else if (attribute == 8) *value = int(function->most_shared_bytes);
    else if (attribute == 9) *value = function->shared_percent;
    else return call(kInvalidValue);
    return kSuccess;
}

CUDA_API Result cuOccupancyMaxActiveClusters(int* clusters, Function* function, const LaunchConfig* config) {
    DRIVER_CALL(context);
    if (clusters == nullptr || function == nullptr || config == nullptr) return call(kInvalidValue);
    *clusters = 0;
    Result planted;
    if (Config::get().is_planted(Fault::kClusters, &planted)) return call(planted);
    // A size that cannot run is reported in either way: as 0 clusters, or by a refusal.
    if (config->grid[0] > unsigned(Config::get().multiprocessors)) return kSuccess;
    if (Result refused = check_teams(*config, *function)) return call(refused);
    *clusters = Config::get().multiprocessors / int(config->grid[0]);
    return kSuccess;
}

CUDA_API Result cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** told, void** extra) {
    DRIVER_CALL(context);
    if (config == nullptr || function == nullptr || told == nullptr || extra != nullptr) return call(kInvalidValue);
    Device& device = call.device();
    auto stream = stream_of(device, config->stream);
    if (stream == nullptr || function->device != &device) return call(kInvalidHandle);
    Grid grid{config->grid[0], config->grid[1], config->block[0], config->shared_bytes};
    bool is_laid = grid.team_size > 0 && grid.teams > 0 && config->grid[2] == 1 && config->block[1] == 1 && config->block[2] == 1;
    if (!is_laid || grid.threads != function->kernel.threads) return call(kInvalidValue);
    if (grid.shared_bytes > function->most_shared_bytes) return call(kInvalidValue);
    if (Result refused = check_teams(*config, *function)) return call(refused);
    Arguments arguments{argument<Address>(told, 0),  argument<Address>(told, 1),  argument<Address>(told, 2),
                        argument<unsigned>(told, 3), argument<unsigned>(told, 4), argument<unsigned>(told, 5),
                        argument<unsigned>(told, 6)};
    // As for rows that are copied on the device: they are not part of what was uploaded.
    if (spreads(function->kernel)) uploaded[Address(range_of(arguments.outputs)->at)] = 0;
    ask(device, *stream, [=] { return launch(*function, grid, arguments); });
    return kSuccess;
}
