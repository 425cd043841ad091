# ddprun::grpc: Debian's gRPC and Protobuf, every archive linked statically: `ddprun` is one file
# that needs no library. ThreadSanitizer's build has the shared libraries. Its list of what is not
# told (tests/support/tsan.supp) names libraries, and an archive has no name in a report.
find_package(PkgConfig REQUIRED)
find_program(DDPRUN_PROTOC protoc REQUIRED)
find_program(DDPRUN_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# pkg_check_modules() asks 16 times, and each answer takes seconds (Abseil has some two hundred
# packages). So it is not used.
if(NOT DDPRUN_GRPC_LIBS)
  execute_process(COMMAND "${PKG_CONFIG_EXECUTABLE}" --static --libs-only-l grpc++ protobuf
    OUTPUT_VARIABLE _libs OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(DDPRUN_GRPC_LIBS "${_libs}" CACHE INTERNAL "What pkg-config says of gRPC and Protobuf")
endif()
string(REGEX MATCHALL "[^ ]+" _libraries "${DDPRUN_GRPC_LIBS}")
list(TRANSFORM _libraries REPLACE "^-l" "")
list(REMOVE_DUPLICATES _libraries)
if(DDPRUN_SANITIZE STREQUAL "thread")
  set(_suffix .so)
else()
  set(_suffix .a)
endif()
set(_files "")
foreach(_library IN LISTS _libraries)
  if(_library MATCHES "^(pthread|dl|rt|m|atomic)$")
    continue()  # part of glibc 2.36, or needed by nothing on x86-64
  endif()
  set(_found DDPRUN_LIBRARY_${_library}${_suffix})
  find_library(${_found} NAMES lib${_library}${_suffix} REQUIRED)
  list(APPEND _files "${${_found}}")
endforeach()

add_library(ddprun_grpc INTERFACE)
add_library(ddprun::grpc ALIAS ddprun_grpc)
target_link_libraries(ddprun_grpc INTERFACE
  -Wl,--start-group ${_files} -Wl,--end-group Threads::Threads ${CMAKE_DL_LIBS})

# ddprun::crypto: OpenSSL's two libraries, of the same archives as gRPC's.
add_library(ddprun_crypto INTERFACE)
add_library(ddprun::crypto ALIAS ddprun_crypto)
target_link_libraries(ddprun_crypto INTERFACE
  "${DDPRUN_LIBRARY_ssl${_suffix}}" "${DDPRUN_LIBRARY_crypto${_suffix}}" Threads::Threads ${CMAKE_DL_LIBS})
