# The installed package: library, headers, moe64Config.cmake for find_package, moe64.pc for pkg-config, the tool with its
# shell completion and manual page.
include(CMakePackageConfigHelpers)

set(moe64_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/moe64")
install(
  TARGETS moe64
  EXPORT moe64Targets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/moe64" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT moe64Targets NAMESPACE moe64:: DESTINATION "${moe64_cmake_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/moe64Config.cmake.in"
                              "${PROJECT_BINARY_DIR}/moe64Config.cmake" INSTALL_DESTINATION "${moe64_cmake_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/moe64ConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/moe64Config.cmake" "${PROJECT_BINARY_DIR}/moe64ConfigVersion.cmake"
        DESTINATION "${moe64_cmake_dir}")

# moe64.pc finds its prefix from where it lies, so that an installed tree can be moved.
set(moe64_pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}/${moe64_pc_dir}" OUTPUT_VARIABLE
           moe64_pc_to_prefix)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(moe64_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  set(moe64_pc_prefix "\${pcfiledir}/${moe64_pc_to_prefix}")
endif()
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY "\${prefix}" OUTPUT_VARIABLE moe64_pc_libdir)
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_INCLUDEDIR BASE_DIRECTORY "\${prefix}" OUTPUT_VARIABLE moe64_pc_includedir)
if(BUILD_SHARED_LIBS)
  set(moe64_pc_cflags "")
  set(moe64_pc_libs "")
else()
  set(moe64_pc_cflags " -DMOE64_STATIC")
  set(moe64_pc_libs " -lstdc++ -lm -pthread")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/moe64.pc.in" "${PROJECT_BINARY_DIR}/moe64.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/moe64.pc" DESTINATION "${moe64_pc_dir}")

if(TARGET moe64_cli)
  file(RELATIVE_PATH moe64_bin_to_lib "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(moe64_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${moe64_bin_to_lib}")
  install(TARGETS moe64_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")

  # The tool prints its shell completion and its manual page, so it has to run here.
  if(NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR)
    set(moe64_printed "${PROJECT_BINARY_DIR}/printed")
    file(MAKE_DIRECTORY "${moe64_printed}")
    add_custom_command(
      TARGET moe64_cli
      POST_BUILD
      COMMAND moe64_cli completion bash > "${moe64_printed}/moe64.bash"
      COMMAND moe64_cli completion zsh > "${moe64_printed}/_moe64"
      COMMAND moe64_cli completion fish > "${moe64_printed}/moe64.fish"
      COMMAND moe64_cli man > "${moe64_printed}/moe64.1"
      COMMENT "Printing shell completion and the manual page"
      VERBATIM)
    install(FILES "${moe64_printed}/moe64.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions"
            RENAME moe64)
    install(FILES "${moe64_printed}/_moe64" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
    install(FILES "${moe64_printed}/moe64.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
    install(FILES "${moe64_printed}/moe64.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
  endif()
endif()

# What a wheel carries besides Python: the library under the name that the tool looks for, and the tool.
if(MOE64_PYTHON_WHEEL)
  install(FILES $<TARGET_FILE:moe64> DESTINATION lib RENAME $<TARGET_SONAME_FILE_NAME:moe64> COMPONENT python)
  if(TARGET moe64_cli)
    install(TARGETS moe64_cli RUNTIME DESTINATION bin COMPONENT python)
  endif()
endif()
