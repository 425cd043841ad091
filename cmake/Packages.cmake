# Two Debian packages of what Install.cmake installs; `cmake --build build --target packages` puts
# them into build/packages. `ddprun` is static: it depends on nothing and suits any release of
# Debian. `ddprun-dev` suits the release that it was built on.
set(DDPRUN_MAINTAINER "The ddprun developers <ddprun@debian.example.net>" CACHE STRING "The maintainer that the Debian packages name")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "${DDPRUN_MAINTAINER}")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training jobs: launcher and data-parallel engine")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)  # Debian 11 unpacks no zstd
set(CPACK_COMPONENTS_ALL ddprun)

set(CPACK_DEBIAN_DDPRUN_PACKAGE_NAME ddprun)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SUGGESTS "python3")
set(CPACK_DEBIAN_DDPRUN_PACKAGE_CONTROL_EXTRA "${PROJECT_SOURCE_DIR}/cmake/debian/prerm;${PROJECT_SOURCE_DIR}/cmake/debian/postrm")
set(CPACK_DEBIAN_DDPRUN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENT_DDPRUN_DESCRIPTION
  "Starts, watches, restarts and cleans up the workers of a distributed PyTorch
job, on one node or on many. A drop-in for torchrun, as one static program.
ddprund serves the rendezvous of many jobs, and ddpctl shows and changes them.")

string(REGEX MATCH "^[0-9]+" _gcc "${CMAKE_CXX_COMPILER_VERSION}")
if(DDPRUN_BUILD_WORKER AND NOT DDPRUN_SANITIZE)
  list(APPEND CPACK_COMPONENTS_ALL ddprun-dev)
  set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_NAME ddprun-dev)
  set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_DEPENDS "libdeflate-dev, g++ (>= 4:${_gcc})")
  set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_RECOMMENDS "cmake (>= 3.25), ddprun (= ${PROJECT_VERSION}), libturbojpeg0-dev, libpng-dev, zlib1g-dev")
  set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_SUGGESTS "python3")
  set(CPACK_COMPONENT_DDPRUN-DEV_DESCRIPTION
    "Headers and static libraries for C++ programs that train with LibTorch on
several ranks. LibTorch is that of PyTorch's wheel, release ${DDPRUN_TORCH_VERSION}.")
endif()

# A reader of the package finds its licence and its last change.
string(TIMESTAMP DDPRUN_PACKAGED "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(cmake/debian/changelog.in "${PROJECT_BINARY_DIR}/share/debian/changelog" @ONLY)
configure_file(cmake/debian/copyright.in "${PROJECT_BINARY_DIR}/share/debian/copyright" @ONLY)
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/DebianFiles.cmake")
set(CPACK_DDPRUN_DEBIAN_FILES "${PROJECT_BINARY_DIR}/share/debian")
set(CPACK_DDPRUN_OVERRIDES "${PROJECT_SOURCE_DIR}/cmake/debian/ddprun.lintian-overrides")
include(CPack)

add_custom_target(packages COMMAND "${CMAKE_CPACK_COMMAND}" WORKING_DIRECTORY "${PROJECT_BINARY_DIR}"
  DEPENDS installable COMMENT "Making Debian packages" VERBATIM)
if(TARGET ddprun_sbom)
  add_dependencies(packages ddprun_sbom)
endif()
