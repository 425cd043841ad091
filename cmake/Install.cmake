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

# The unit starts the program that is installed beside it, and is started by nobody but the administrator.
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
  worker_nccl worker_tensors worker_averages worker_buckets worker_data_parallel worker_comm_hooks worker_amp worker_norm worker_zero_partition worker_zero worker_sharded_plan worker_sharded worker_replicas worker_data readers
  worker_checkpoint_files worker_checkpoint)
set(DDPRUN_HAVE_NCCL OFF)
if(TARGET ddprun_nccl)
  set(DDPRUN_HAVE_NCCL ON)
  list(APPEND _rooms worker_nccl_core)
endif()
list(TRANSFORM _rooms PREPEND ddprun_)
add_dependencies(installable ${_rooms})
set(_folder "${CMAKE_INSTALL_LIBDIR}/ddprun")
install(TARGETS ${_rooms} ddprun_flags ddprun_worker_core ddprun_worker EXPORT ddprun-targets
  ARCHIVE DESTINATION "${_folder}" COMPONENT ddprun-dev)
set_target_properties(ddprun_worker PROPERTIES EXPORT_NAME worker)
install(EXPORT ddprun-targets NAMESPACE ddprun:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun" COMPONENT ddprun-dev)

# The public headers (worker/CMakeLists.txt) and those that they include; tests/install holds that none is missing.
set(_headers
  base/environment.h base/result.h proto/worker_env.h worker/collective/core/collective.h worker/collective/core/exchange.h worker/collective/core/mean.h worker/collective/core/require_same.h
  worker/collective/core/operation_ring.h worker/training/comm_hooks/comm_hooks.h worker/training/comm_hooks/power_sgd.h worker/training/amp/autocast.h worker/training/amp/loss_scaler.h worker/training/amp/master_weights.h worker/training/replicas/replicas.h worker/data/distributed_sampler.h
  worker/data/batch_loader.h worker/data/ordered_prefetch.h worker/data/tensor_batch.h examples/readers/csv_table.h examples/readers/file_text.h
  worker/training/averages/parameter_index.h worker/training/norm/sync_batch_norm.h worker/training/join/join.h worker/training/join/join_round.h worker/training/join/joinable.h worker/training/zero/zero_optimizer.h
  worker/training/zero/optimizers.h worker/training/zero/shards.h worker/training/zero/partition.h worker/training/sharded/sharded_parallel.h worker/training/sharded/flat_unit.h worker/training/sharded/unit_layout.h
  worker/training/sharded/unit_order.h worker/training/sharded/units.h
  examples/readers/image.h examples/readers/image_folder.h examples/readers/labelled_images.h examples/readers/text_folder.h
  worker/training/data_parallel/bucket.h worker/training/data_parallel/data_parallel.h worker/training/data_parallel/log_record.h worker/training/data_parallel/module_state.h
  worker/training/data_parallel/output_sink.h worker/startup/bootstrap.h worker/startup/rank_processes.h worker/startup/spawn.h worker/collective/tcp/tcp_collective.h worker/collective/tcp/tcp_feed.h
  worker/training/tensors/tensor_verbs.h worker/training/tensors/stepped_tensors.h worker/checkpoint/checkpoint.h worker/checkpoint/checkpoint_file.h worker/checkpoint/load_options.h
  worker/checkpoint/pickle.h
  worker/checkpoint/value.h worker/checkpoint/zip_file.h)
foreach(_header IN LISTS _headers)
  get_filename_component(_place "${_header}" DIRECTORY)
  install(FILES "${PROJECT_SOURCE_DIR}/${_header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/ddprun/${_place}" COMPONENT ddprun-dev)
endforeach()

include(CMakePackageConfigHelpers)
file(STRINGS "${DDPRUN_TORCH_DIR}/version.py" _torch_version REGEX "^__version__ = ")
string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" DDPRUN_TORCH_VERSION "${_torch_version}")
configure_package_config_file(cmake/ddprun-config.cmake.in "${PROJECT_BINARY_DIR}/share/ddprun-config.cmake"
  INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/share/ddprun-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/share/ddprun-config.cmake" "${PROJECT_BINARY_DIR}/share/ddprun-config-version.cmake"
  cmake/Torch.cmake cmake/Nccl.cmake
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun" COMPONENT ddprun-dev)
