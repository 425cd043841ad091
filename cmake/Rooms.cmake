# How every room is built: one static library `ddprun_<room>` with the alias `ddprun::<room>`, the repository root as
# include root, warnings as errors.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(DDPRUN_CCACHE ccache)
if(DDPRUN_CCACHE)
  # ccache(1), "Precompiled headers": without these two it would compile anew whatever uses one.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${DDPRUN_CCACHE}")
endif()

if(DDPRUN_SANITIZE)
  add_compile_options(-fsanitize=${DDPRUN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DDPRUN_SANITIZE})
endif()

# Boost 1.81 lives beside Debian's default 1.74; Asio is header-only and uses no compiled Boost.
find_package(Boost 1.81 EXACT REQUIRED)

add_library(ddprun_flags INTERFACE)
target_compile_options(ddprun_flags INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wswitch-enum -Werror
  # A designated initializer names what it sets; what it leaves out has its default on purpose.
  -Wno-missing-field-initializers)
if(DDPRUN_SANITIZE)
  # GCC 12 warns about code of its own headers once a sanitizer changes what it inlines (GCC bug 105562 and kin).
  target_compile_options(ddprun_flags INTERFACE -Wno-error=maybe-uninitialized -Wno-tsan)
endif()
target_include_directories(ddprun_flags INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_definitions(ddprun_flags INTERFACE
  BOOST_ASIO_NO_DEPRECATED BOOST_ASIO_SEPARATE_COMPILATION FMT_HEADER_ONLY)
target_link_libraries(ddprun_flags INTERFACE Threads::Threads)

# Under a sanitizer, what most files include comes from a precompiled header: it builds a third faster. The release build does
# without, so that a missing #include is noticed there.
set(DDPRUN_PRECOMPILED <algorithm> <array> <chrono> <csignal> <filesystem> <fstream> <functional> <map> <memory> <optional> <set>
  <sstream> <string> <string_view> <utility> <variant> <vector> <boost/asio/awaitable.hpp> <boost/asio/co_spawn.hpp>
  <boost/asio/experimental/awaitable_operators.hpp> <boost/asio/io_context.hpp> <boost/asio/ip/tcp.hpp>
  <boost/asio/posix/stream_descriptor.hpp> <boost/asio/post.hpp> <boost/asio/steady_timer.hpp> <boost/asio/use_awaitable.hpp>
  <fmt/format.h>)

# ddprun_precompile(<owner> [more headers...]): makes the precompiled header that ddprun_use_precompiled() takes from <owner>.
function(ddprun_precompile owner)
  if(DDPRUN_SANITIZE)
    add_library(${owner} STATIC "${PROJECT_SOURCE_DIR}/cmake/precompiled.cc")
    target_link_libraries(${owner} PRIVATE ddprun_flags Boost::headers)
    target_precompile_headers(${owner} PRIVATE ${DDPRUN_PRECOMPILED} ${ARGN})
  endif()
endfunction()
function(ddprun_use_precompiled target owner)
  if(DDPRUN_SANITIZE)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
ddprun_precompile(ddprun_precompiled)

# ddprun_room(<room> SOURCES a.cc b.cc [PUBLIC libs...] [PRIVATE libs...])
function(ddprun_room room)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(ddprun_${room} STATIC ${ARG_SOURCES})
  add_library(ddprun::${room} ALIAS ddprun_${room})
  target_link_libraries(ddprun_${room} PUBLIC ddprun_flags ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  ddprun_use_precompiled(ddprun_${room} ddprun_precompiled)
endfunction()
