# ddprun_sbom: what the static programs contain, as an SPDX document and as notices, in share/. The
# packages and the wheel take both from there, and cannot be made without. dpkg knows the versions:
# a plain build on another system leaves it out. With a sanitizer nothing is static.
if(DDPRUN_SANITIZE)
  return()
endif()
find_program(DDPRUN_PYTHON3 python3 REQUIRED)
set(_script "${PROJECT_SOURCE_DIR}/scripts/sbom")
file(GLOB _parts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/scripts/distribution/*.py")
set(_sysroot "")
if(CMAKE_SYSROOT)
  set(_sysroot --sysroot "${CMAKE_SYSROOT}")
endif()
set(_share "${PROJECT_BINARY_DIR}/share")
add_custom_command(OUTPUT "${_share}/ddprun.spdx.json" "${_share}/linked-libraries"
  COMMAND "${DDPRUN_PYTHON3}" -B "${_script}" "${PROJECT_BINARY_DIR}" "${_share}" "${PROJECT_VERSION}" ${_sysroot}
  DEPENDS ddprun ddprund ddpctl "${_script}" ${_parts}
  COMMENT "Listing what the programs contain" VERBATIM)
find_program(DDPRUN_DPKG_QUERY dpkg-query)
set(_with_each_build "")
if(DDPRUN_DPKG_QUERY)
  set(_with_each_build ALL)
endif()
add_custom_target(ddprun_sbom ${_with_each_build} DEPENDS "${_share}/ddprun.spdx.json" "${_share}/linked-libraries")
if(NOT DDPRUN_DPKG_QUERY)
  return()
endif()
add_dependencies(installable ddprun_sbom)
install(FILES "${_share}/ddprun.spdx.json" "${_share}/linked-libraries" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT ddprun)
