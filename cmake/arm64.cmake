# Builds for arm64 on another machine, by Debian's cross compiler. `scripts/arm64 sysroot` makes the
# folder with arm64's libraries. protoc and the plugin of gRPC are the machine's own.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(DDPRUN_SYSROOT "${_root}/out/sysroot-arm64" CACHE PATH "The folder with the libraries of arm64")
set(CMAKE_SYSROOT "${DDPRUN_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} "${DDPRUN_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${DDPRUN_SYSROOT}/usr/share/pkgconfig")
# The build runs programs of its own: they write the manual pages.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "${DDPRUN_SYSROOT}")
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
