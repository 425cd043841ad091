#include "agent/core/node_fault.h"

#include <algorithm>

namespace ddprun::agent {

bool blames_device(std::string_view words) {
  constexpr std::string_view kDevice[] = {"uncorrectable ECC error",
                                          "uncorrectable NVLink error",
                                          "fallen off the bus",
                                          "GPU is lost",
                                          "CUDA error: unknown error",
                                          "HIP error: unknown error",
                                          "CUDA error: system not yet initialized"};
  return std::ranges::any_of(kDevice, [words](std::string_view text) {
    return words.find(text) != std::string_view::npos;
  });
}

}  // namespace ddprun::agent
