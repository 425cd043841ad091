# Every room is built as one static library `ddprun_<room>` with the alias `ddprun::<room>`. The
# repository root is the include root, and warnings are errors.

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
  # Headers that are compiled before hold no time, and no macro that a file defines before them.
  # Paths below the root are relative ones, so that all checkouts share what one has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
    "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${DDPRUN_CCACHE}")
endif()

# No path of the builder's folder is in a program: two folders give equal bytes. GCC takes the last
# match.
add_compile_options("-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=" "-ffile-prefix-map=${PROJECT_BINARY_DIR}/=")
# GCC fuses multiply and add wherever the instruction set can, as on arm64. The bits would not be
# those of LibTorch.
add_compile_options(-ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
  add_compile_options(-fsigned-char)  # as on x86-64
endif()

if(DDPRUN_SANITIZE)
  add_compile_options(-fsanitize=${DDPRUN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DDPRUN_SANITIZE})
endif()
if(DDPRUN_BUILD_FUZZERS)
  # Every finding ends the fuzzer. Clang 14 cannot emit what -fsanitize=function puts in front of a
  # coroutine's parts.
  add_compile_options(-fsanitize=fuzzer-no-link -fno-sanitize-recover=all -fno-sanitize=function)
endif()

# Boost 1.81 lives beside Debian's default 1.74; Asio is header-only and uses no compiled Boost.
find_package(Boost 1.81 EXACT REQUIRED)

add_library(ddprun_flags INTERFACE)
# Programs on an installed engine do not get these. They choose their warnings themselves.
target_compile_options(ddprun_flags INTERFACE
  $<BUILD_INTERFACE:-Wall> $<BUILD_INTERFACE:-Wextra> $<BUILD_INTERFACE:-Wshadow> $<BUILD_INTERFACE:-Wconversion>
  $<BUILD_INTERFACE:-Wswitch-enum> $<BUILD_INTERFACE:-Werror>
  # A designated initializer names what it sets; what it leaves out has its default on purpose.
  $<BUILD_INTERFACE:-Wno-missing-field-initializers>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # The fuzzers' build (tests/fuzz). GCC's warnings are the ones that are held; Clang does not know
  # all of their names. A fuzzer that forgets a value of an enum fails here: GCC never sees it.
  target_compile_options(ddprun_flags INTERFACE $<BUILD_INTERFACE:-Wno-unknown-warning-option> $<BUILD_INTERFACE:-Wno-error>
    $<BUILD_INTERFACE:-Werror=switch-enum>)
endif()
if(DDPRUN_SANITIZE)
  # GCC 12 warns about its own headers once a sanitizer changes what it inlines (GCC bug 105562 and
  # kin).
  target_compile_options(ddprun_flags INTERFACE -Wno-error=maybe-uninitialized -Wno-tsan)
endif()
if(CMAKE_UNITY_BUILD)
  # All presets but `dev` compile up to sixteen files as one, which takes half the time. With
  # LibTorch's headers a file takes 10 s. `dev` compiles each file alone, so that a missing #include
  # is noticed there. One file then includes the others. GCC takes them for headers, and warns of
  # each anonymous namespace in a header.
  target_compile_options(ddprun_flags INTERFACE $<BUILD_INTERFACE:-Wno-subobject-linkage>)
endif()
target_compile_features(ddprun_flags INTERFACE cxx_std_20)
target_include_directories(ddprun_flags INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
target_compile_definitions(ddprun_flags INTERFACE
  $<BUILD_INTERFACE:BOOST_ASIO_NO_DEPRECATED> $<BUILD_INTERFACE:BOOST_ASIO_SEPARATE_COMPILATION>)
target_link_libraries(ddprun_flags INTERFACE Threads::Threads)

# ddprun_link_statically(<program>): one file that needs no library, unless a sanitizer wants its
# own. share/maps/<program>.map says what the linker took (scripts/sbom).
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/share/maps")
function(ddprun_link_statically program)
  if(NOT DDPRUN_SANITIZE)
    target_link_options(${program} PRIVATE -static -no-pie -s -Wl,-O1 -Wl,--gc-sections
      "-Wl,-Map=${PROJECT_BINARY_DIR}/share/maps/${program}.map")
    target_link_libraries(${program} PRIVATE ddprun::refused_clone3)
  endif()
endfunction()

# Rooms whose code runs now and then. In a release they are compiled for size, since ddprun is one
# file that people copy.
set(DDPRUN_SMALL_ROOMS launcher_scheduler launcher_options launcher_job launcher_doctor launcher_report agent agent_core agent_report agent_standstill agent_standby agent_monitors agent_network
  base_http rendezvous_election rendezvous_failover rendezvous_control rendezvous_pages rendezvous_trust daemon)

# ddprun_room(<room> SOURCES a.cc b.cc [PUBLIC libs...] [PRIVATE libs...])
function(ddprun_room room)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(ddprun_${room} STATIC ${ARG_SOURCES})
  add_library(ddprun::${room} ALIAS ddprun_${room})
  target_link_libraries(ddprun_${room} PUBLIC ddprun_flags ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  if(room IN_LIST DDPRUN_SMALL_ROOMS AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(ddprun_${room} PRIVATE -Os -ffunction-sections -fdata-sections)
  endif()
endfunction()
