# ddprun::torch: LibTorch of the wheel at DDPRUN_TORCH_DIR as one imported target.
# find_package(Torch) is not used. It looks for a CUDA toolkit with nvcc, which nothing here needs.
# It puts torch's own protobuf headers in the way. ddprun::nccl: NCCL and the CUDA runtime that
# torch itself loads. Absent if the wheel came without them (CPU wheels). Then DDPRUN_HAVE_NCCL is
# OFF and the engine has its CPU collectives only.
if(NOT EXISTS "${DDPRUN_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch at DDPRUN_TORCH_DIR=${DDPRUN_TORCH_DIR}: pip install torch==2.11.0 into .venv, "
    "or configure with -DDDPRUN_BUILD_WORKER=OFF")
endif()

add_library(ddprun_torch INTERFACE IMPORTED GLOBAL)
add_library(ddprun::torch ALIAS ddprun_torch)
target_include_directories(ddprun_torch SYSTEM INTERFACE
  "${DDPRUN_TORCH_DIR}/include" "${DDPRUN_TORCH_DIR}/include/torch/csrc/api/include")
# FMT_HEADER_ONLY: LibTorch brings its own fmt, another release than that of base/fmt.cc.
target_compile_definitions(ddprun_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED FMT_HEADER_ONLY)
target_link_options(ddprun_torch INTERFACE "-Wl,-rpath,${DDPRUN_TORCH_DIR}/lib")
target_link_libraries(ddprun_torch INTERFACE
  "${DDPRUN_TORCH_DIR}/lib/libtorch_cpu.so" "${DDPRUN_TORCH_DIR}/lib/libc10.so")

set(DDPRUN_HAVE_NCCL OFF)
if(TARGET ddprun::nccl_headers AND EXISTS "${DDPRUN_TORCH_DIR}/lib/libtorch_cuda.so"
    AND EXISTS "${ddprun_nvidia_dir}/cu13/lib/libcudart.so.13")
  set(DDPRUN_HAVE_NCCL ON)
  add_library(ddprun_nccl INTERFACE IMPORTED GLOBAL)
  add_library(ddprun::nccl ALIAS ddprun_nccl)
  target_link_options(ddprun_nccl INTERFACE
    "-Wl,-rpath,${ddprun_nvidia_dir}/nccl/lib:${ddprun_nvidia_dir}/cu13/lib")
  # libtorch_cuda registers its kernels in static constructors: without --no-as-needed the linker
  # would drop it.
  target_link_libraries(ddprun_nccl INTERFACE ddprun_torch ddprun_nccl_headers
    "-Wl,--no-as-needed" "${DDPRUN_TORCH_DIR}/lib/libtorch_cuda.so" "-Wl,--as-needed"
    "${DDPRUN_TORCH_DIR}/lib/libc10_cuda.so"
    "${ddprun_nvidia_dir}/nccl/lib/libnccl.so.2" "${ddprun_nvidia_dir}/cu13/lib/libcudart.so.13")
endif()

# ddprun_torch_headers(<target>…): LibTorch's headers are compiled once for all these targets. Each
# file then takes 10 s less. Tests have other compiler flags, and so a set of their own. `dev` does
# without: it compiles each file alone, so that a missing #include is noticed there.
# docs/decisions/0041 has the figures.
function(ddprun_torch_headers)
  if(NOT CMAKE_UNITY_BUILD OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  get_directory_property(_flags COMPILE_OPTIONS)
  string(MAKE_C_IDENTIFIER "ddprun_torch_headers${_flags}" _set)
  if(NOT TARGET ${_set})
    set(_source "${PROJECT_BINARY_DIR}/${_set}.cc")
    file(CONFIGURE OUTPUT "${_source}" CONTENT "// Headers alone are compiled with this file.\n")
    add_library(${_set} OBJECT "${_source}")
    target_link_libraries(${_set} PRIVATE ddprun_flags ddprun::torch)
    target_precompile_headers(${_set} PRIVATE <torch/torch.h>)
  endif()
  foreach(_target IN LISTS ARGN)
    target_compile_options(${_target} PRIVATE -fpch-preprocess)  # asked for by ccache
    target_precompile_headers(${_target} REUSE_FROM ${_set})
  endforeach()
endfunction()
