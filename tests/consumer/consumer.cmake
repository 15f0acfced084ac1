# Uses moe64 as its users do: installs it below the build folder, then configures, builds and runs the first program
# of docs/tutorial-cpp.md against it with find_package and with pkg-config, and against the sources with add_subdirectory;
# and the other programs of that page, in C++ and C, with pkg-config.
file(GLOB moe64_example CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/forward.cpp")
if(NOT moe64_example OR NOT MOE64_INSTALL OR MOE64_SANITIZE)
  return()
endif()

set(moe64_consumer_dir "${PROJECT_BINARY_DIR}/consumer")

# moe64_consumer_test(name [property value]...)
function(moe64_consumer_test name)
  add_test(
    NAME consumer.${name}
    COMMAND
      "${CMAKE_COMMAND}" -D STEP=${name} -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D BUILD_DIR=${PROJECT_BINARY_DIR} -D
      WORK_DIR=${moe64_consumer_dir} -D EXAMPLE=${moe64_example} -D GENERATOR=${CMAKE_GENERATOR} -D
      CXX=${CMAKE_CXX_COMPILER} -D CC=${CMAKE_C_COMPILER} -D LIBDIR=${CMAKE_INSTALL_LIBDIR} -D
      LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER} -D
      CONFIG=$<CONFIG> -D SHARED=${BUILD_SHARED_LIBS} -D WERROR=${MOE64_WERROR} -P "${PROJECT_SOURCE_DIR}/tests/consumer/run.cmake")
  set_tests_properties(consumer.${name} PROPERTIES LABELS consumer ${ARGN})
endfunction()

moe64_consumer_test(install FIXTURES_SETUP moe64_installed TIMEOUT 120)
# What the example prints when it is right; it is the last thing that a step does.
set(moe64_right PASS_REGULAR_EXPRESSION "y = 0\\.731059 0\\.731059")
moe64_consumer_test(find_package FIXTURES_REQUIRED moe64_installed TIMEOUT 300 ${moe64_right})
moe64_consumer_test(pkg_config FIXTURES_REQUIRED moe64_installed TIMEOUT 300 ${moe64_right})
if(MOE64_BUILD_CLI)
  moe64_consumer_test(tutorial FIXTURES_REQUIRED moe64_installed TIMEOUT 300)
endif()
moe64_consumer_test(add_subdirectory TIMEOUT 1800 PROCESSORS 2 ${moe64_right})
if(BUILD_SHARED_LIBS)
  moe64_consumer_test(symbols FIXTURES_REQUIRED moe64_installed TIMEOUT 60)
endif()
