// Whether a worker's last words blame its node. Pure; any thread.
#pragma once

#include <string_view>

namespace ddprun::agent {

// Returns whether the line says that a device or its driver does not work. A program can make all
// other errors of CUDA by itself, such as an illegal access or too little memory.
bool blames_device(std::string_view words);

}  // namespace ddprun::agent
