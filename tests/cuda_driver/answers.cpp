#include "answers.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "memory.hpp"

namespace driver {
namespace {

constexpr char kUnwritten = char(0xCD);

struct Hash {
    uint64_t value = 0x243F6A8885A308D3;

    void take(uint64_t word) {
        value = (value ^ word) * 0x9E3779B97F4A7C15;
        value ^= value >> 29;
    }
    void take(const char* bytes, size_t count) {
        take(count);
        uint64_t word;
        for (size_t at = 0; at < count; at += sizeof word) {
            word = 0;
            memcpy(&word, bytes + at, count - at < sizeof word ? count - at : sizeof word);
            take(word);
        }
    }
};

std::string place(const char* folder, const Kernel& kernel, const Grid& grid, const Arguments& told) {
    Hash hash;
    for (unsigned word : {grid.team_size, grid.teams, grid.shared_bytes, told.first, told.rows, told.slice_chunks, told.cached_vectors}) {
        hash.take(word);
    }
    hash.take(kernel.has_clusters);
    hash.take(reinterpret_cast<const char*>(told.inputs), uploaded[told.inputs]);
    char name[64];
    snprintf(name, sizeof name, "/%s-%016llx", kernel.name, static_cast<unsigned long long>(hash.value));
    return std::string(folder) + name;
}

bool read_from(const std::string& path, char* outputs, size_t room) {
    FILE* file = fopen(path.c_str(), "rb");
    if (file == nullptr) return false;
    size_t bytes = fread(outputs, 1, room, file);
    fclose(file);
    return bytes > 0;
}

// Writes the file whole or not at all, even if another process writes the same.
void write_to(const std::string& path, const char* outputs, size_t room) {
    while (room > 0 && outputs[room - 1] == kUnwritten) --room;
    std::string unfinished = path + "." + std::to_string(getpid());
    FILE* file = fopen(unfinished.c_str(), "wb");
    if (file == nullptr) return;
    bool is_whole = fwrite(outputs, 1, room, file) == room;
    if (fclose(file) == 0 && is_whole) rename(unfinished.c_str(), path.c_str());
}

// While one exists, no other process computes the same answer: it would take as long, and get the same result.
class Turn {
  public:
    explicit Turn(const std::string& path) {
        // There are few lock files for many answers, but enough that a process seldom waits for an unrelated answer.
        std::string turns = path.substr(0, path.rfind('/')) + "/turn-" + path.substr(path.size() - 2);
        fd = open(turns.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        // Without the lock, both processes compute it.
        if (fd >= 0) (void)flock(fd, LOCK_EX);
    }
    ~Turn() {
        if (fd >= 0) close(fd);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

  private:
    int fd;
};

// The file in which an answer is kept, and the memory that it goes to.
struct Answer {
    std::string path;
    char* to;
    size_t room;
};

void find(const Kernel& kernel, const Grid& grid, const Arguments& arguments, const Answer& answer) {
    Turn turn(answer.path);
    if (read_from(answer.path, answer.to, answer.room)) return;
    Arguments own = arguments;
    own.outputs = reinterpret_cast<Address>(answer.to);
    kernel.run(grid, own);
    write_to(answer.path, answer.to, answer.room);
}

}  // namespace

void run_or_remember(const Kernel& kernel, const Grid& grid, const Arguments& arguments) {
    static const char* const folder = getenv("FAKE_CUDA_ANSWERS");
    char* outputs = reinterpret_cast<char*>(arguments.outputs);
    const Range* range = range_of(arguments.outputs);
    // Rows that are on the device are not part of what the host uploaded, so the name would not depend on them.
    bool is_known = uploaded[arguments.inputs] > 0;
    if (folder == nullptr || range == nullptr || !is_known) return kernel.run(grid, arguments);
    size_t room = size_t(range->at + range->bytes - outputs);
    // If a launch begins after other rows, only what it writes is kept, and the other rows' results stay as they are.
    std::vector<char> apart(arguments.first > 0 ? room : 0);
    char* to = apart.empty() ? outputs : apart.data();
    memset(to, kUnwritten, room);
    std::string path = place(folder, kernel, grid, arguments);
    if (!read_from(path, to, room)) find(kernel, grid, arguments, {path, to, room});
    for (size_t at = 0; at < apart.size(); ++at) {
        if (apart[at] != kUnwritten) outputs[at] = apart[at];
    }
}

}  // namespace driver
