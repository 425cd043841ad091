# Run by cpack between installation and packaging. It adds the files that Debian's policy wants in
# each package. Each component lies in a folder of its own below CPACK_TEMPORARY_DIRECTORY.
foreach(_package IN LISTS CPACK_COMPONENTS_ALL)
  set(_usr "${CPACK_TEMPORARY_DIRECTORY}/${_package}/usr")
  set(_doc "${_usr}/share/doc/${_package}")
  file(COPY "${CPACK_DDPRUN_DEBIAN_FILES}/copyright" "${CPACK_DDPRUN_DEBIAN_FILES}/changelog" DESTINATION "${_doc}"
    DIRECTORY_PERMISSIONS ${CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
  file(GLOB _pages "${_usr}/share/man/man*/*.[1-9]")
  execute_process(COMMAND gzip -9nf "${_doc}/changelog" ${_pages} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# The notices of what is linked in, and the list of it as data (cmake/Sbom.cmake).
set(_doc "${CPACK_TEMPORARY_DIRECTORY}/ddprun/usr/share/doc/ddprun")
execute_process(COMMAND gzip -9nf "${_doc}/linked-libraries" "${_doc}/ddprun.spdx.json" COMMAND_ERROR_IS_FATAL ANY)

# Debian's zsh looks into another folder than that of other packages' functions.
set(_usr "${CPACK_TEMPORARY_DIRECTORY}/ddprun/usr")
file(RENAME "${_usr}/share/zsh/site-functions" "${_usr}/share/zsh/vendor-completions")
file(COPY "${CPACK_DDPRUN_OVERRIDES}" DESTINATION "${_usr}/share/lintian/overrides"
  DIRECTORY_PERMISSIONS ${CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
file(RENAME "${_usr}/share/lintian/overrides/ddprun.lintian-overrides" "${_usr}/share/lintian/overrides/ddprun")
