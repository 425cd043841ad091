// The functions that simulated_nccl.cc takes from simulated_gpu.cc.
#pragma once

#include <cstddef>

namespace ddprun::worker::sim {

void* allocate_block(std::size_t bytes);  // GPU memory, not cleared
void free_block(void* memory);            // waits for its GPU

}  // namespace ddprun::worker::sim
