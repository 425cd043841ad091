# The places of all that `cmake --install` installs, in two components. `ddprun`: programs, manual
# pages, completions. `ddprun-dev`: the engine, for find_package(ddprun CONFIG). The target
# `installable` builds what they need; `packages` makes a .deb of each (Packages.cmake).
include(GNUInstallDirs)

set(_programs ddprun ddprund ddpctl)
set(_pages ddprun.1 ddprund.8 ddpctl.1)
set(_names ddprun-launch)  # links to ddprun

add_custom_target(installable DEPENDS ddprun_documents ddprun_daemon_documents ${_programs})
install(TARGETS ${_programs} RUNTIME COMPONENT ddprun)
foreach(_page IN LISTS _pages)
  string(REGEX MATCH "[0-9]$" _section "${_page}")
  install(FILES "${PROJECT_BINARY_DIR}/share/${_page}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${_section}" COMPONENT ddprun)
endforeach()
foreach(_name IN LISTS _names)
  install(PROGRAMS "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${_name}" TYPE BIN COMPONENT ddprun)
  install(FILES "${PROJECT_BINARY_DIR}/share/${_name}.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT ddprun)
endforeach()

# The unit starts the program that is installed beside it, and is started by nobody but the
# administrator.
set(_unit "${PROJECT_BINARY_DIR}/share/ddprund.service")
install(CODE "
  file(READ \"${PROJECT_SOURCE_DIR}/daemon/ddprund.service\" _text)
  string(REPLACE /usr/local/bin \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\" _text \"\${_text}\")
  file(WRITE \"${_unit}\" \"\${_text}\")
  file(INSTALL \"${_unit}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")
" COMPONENT ddprun)
install(FILES daemon/ddprund.json DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples" COMPONENT ddprun)

# The folders in which each shell looks. bash and fish load a file by the command's name, zsh all of
# a folder. Debian's own folder is another one: DebianFiles.cmake moves the file there.
foreach(_name ddprun ddprun-launch)
  install(FILES "${PROJECT_BINARY_DIR}/share/completion.bash" RENAME ${_name}
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT ddprun)
  install(FILES "${PROJECT_BINARY_DIR}/share/completion.fish" RENAME ${_name}.fish
    DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT ddprun)
endforeach()
install(FILES "${PROJECT_BINARY_DIR}/share/completion.zsh" RENAME _ddprun
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" COMPONENT ddprun)

if(NOT DDPRUN_BUILD_WORKER OR DDPRUN_SANITIZE)
  return()
endif()

# The rooms of the engine, and what they link.
set(_rooms base base_net proto store worker_collective worker_join worker_kernels worker_shm worker_tcp worker_hierarchical worker_init_method worker_pipes worker_startup
  worker_nccl worker_tensors worker_averages worker_buckets worker_data_parallel worker_comm_hooks worker_amp worker_graphs worker_local_sgd worker_norm worker_zero_partition worker_zero worker_sharded_plan worker_sharded worker_tensor_parallel worker_pipeline_plan worker_pipeline worker_replicas worker_data
  worker_checkpoint_files worker_checkpoint)
set(DDPRUN_HAVE_NCCL OFF)
if(TARGET ddprun_nccl)
  set(DDPRUN_HAVE_NCCL ON)
  list(APPEND _rooms worker_nccl_core)
endif()
list(TRANSFORM _rooms PREPEND ddprun_)
add_dependencies(installable ${_rooms})
set(_folder "${CMAKE_INSTALL_LIBDIR}/ddprun")
install(TARGETS ${_rooms} ddprun_flags ddprun_worker_face ddprun_worker_core ddprun_worker EXPORT ddprun-targets
  ARCHIVE DESTINATION "${_folder}" COMPONENT ddprun-dev)
set_target_properties(ddprun_worker PROPERTIES EXPORT_NAME worker)
install(EXPORT ddprun-targets NAMESPACE ddprun:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun" COMPONENT ddprun-dev)

install(DIRECTORY worker/include/ddprun DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT ddprun-dev)

# The readers are asked for by name: find_package(ddprun COMPONENTS readers). No program links their
# libraries unless it asks.
add_dependencies(installable ddprun_readers)
install(TARGETS ddprun_readers EXPORT ddprun-readers-targets ARCHIVE DESTINATION "${_folder}" COMPONENT ddprun-dev)
set_target_properties(ddprun_readers PROPERTIES EXPORT_NAME readers)
install(EXPORT ddprun-readers-targets NAMESPACE ddprun:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun" COMPONENT ddprun-dev)
install(DIRECTORY examples/readers/include/ddprun DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT ddprun-dev)
get_target_property(_libraries ddprun_readers LINK_LIBRARIES)
list(FILTER _libraries INCLUDE REGEX "^/")
set(DDPRUN_READERS_NEED "${_libraries}")

include(CMakePackageConfigHelpers)
file(STRINGS "${DDPRUN_TORCH_DIR}/version.py" _torch_version REGEX "^__version__ = ")
string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" DDPRUN_TORCH_VERSION "${_torch_version}")
configure_package_config_file(cmake/ddprun-config.cmake.in "${PROJECT_BINARY_DIR}/share/ddprun-config.cmake"
  INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/share/ddprun-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/share/ddprun-config.cmake" "${PROJECT_BINARY_DIR}/share/ddprun-config-version.cmake"
  cmake/Torch.cmake cmake/Nccl.cmake
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun" COMPONENT ddprun-dev)
