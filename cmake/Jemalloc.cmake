# ddprun::jemalloc: Debian's jemalloc, linked statically in place of glibc's malloc. A sanitizer has
# a malloc of its own.
add_library(ddprun_jemalloc INTERFACE)
add_library(ddprun::jemalloc ALIAS ddprun_jemalloc)
if(NOT DDPRUN_SANITIZE)
  find_library(DDPRUN_ARCHIVE_jemalloc NAMES libjemalloc.a)
  if(NOT DDPRUN_ARCHIVE_jemalloc)
    message(FATAL_ERROR "no libjemalloc.a: install Debian's libjemalloc-dev (scripts/setup.sh does)")
  endif()
  target_link_libraries(ddprun_jemalloc INTERFACE "${DDPRUN_ARCHIVE_jemalloc}" Threads::Threads ${CMAKE_DL_LIBS})
endif()
