// Keeps the outputs of launches, by all that the launches were told: a kernel's outputs depend on nothing else, and the emulator is
// slow.
#pragma once
#include "launch.hpp"

namespace driver {

// Runs the kernel, or gives the outputs that it gave before. Outputs that it does not write are garbage.
void run_or_remember(const Kernel& kernel, const Grid& grid, const Arguments& arguments);

}  // namespace driver
