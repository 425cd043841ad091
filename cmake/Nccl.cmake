# ddprun::nccl_headers: the headers of NCCL and of the CUDA runtime that came with the torch wheel.
# Absent if it came without them. A target that is compiled with them alone links a GPU that tests
# simulate. So builds without LibTorch have it too.
get_filename_component(ddprun_nvidia_dir "${DDPRUN_TORCH_DIR}/../nvidia" ABSOLUTE)
if(EXISTS "${ddprun_nvidia_dir}/nccl/include/nccl.h" AND EXISTS "${ddprun_nvidia_dir}/cu13/include/cuda_runtime_api.h")
  add_library(ddprun_nccl_headers INTERFACE IMPORTED GLOBAL)
  add_library(ddprun::nccl_headers ALIAS ddprun_nccl_headers)
  target_include_directories(ddprun_nccl_headers SYSTEM INTERFACE
    "${ddprun_nvidia_dir}/nccl/include" "${ddprun_nvidia_dir}/cu13/include")
endif()
