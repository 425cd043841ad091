#include "agent/core/node_fault.h"

#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

TEST(NodeFault, IsADeviceThatDoesNotWorkAndNoErrorThatAProgramMakes) {
  for (const char* const words :
       {"torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA error: unknown error", "NVRM: GPU at PCI has fallen off the bus."})
    EXPECT_TRUE(blames_device(words)) << words;
  for (const char* const words :
       {"RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: device-side assert triggered", "hardware stack error",
        "torch.OutOfMemoryError: CUDA out of memory.", ""})
    EXPECT_FALSE(blames_device(words)) << words;
}

}  // namespace
}  // namespace ddprun::agent
