# cmake -D STEP=... -P run.cmake: one step of the consumer tests, see consumer.cmake.
cmake_minimum_required(VERSION 3.25)

set(prefix "${WORK_DIR}/prefix")
set(work "${WORK_DIR}/${STEP}")

# run(command...): echoes and runs it; a failure ends the test.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# cut_program(line, file): writes the program of docs/tutorial-cpp.md that begins with this line.
function(cut_program first file)
  file(READ "${SOURCE_DIR}/docs/tutorial-cpp.md" page)
  foreach(part "\n${first}\n" "\n```")
    string(FIND "${page}" "${part}" place)
    if(place EQUAL -1)
      message(FATAL_ERROR "docs/tutorial-cpp.md has no '${part}' for ${file}")
    endif()
    if(part STREQUAL "\n```")
      string(SUBSTRING "${page}" 0 ${place} page)
    else()
      string(SUBSTRING "${page}" ${place} -1 page)
    endif()
  endforeach()
  file(WRITE "${file}" "${page}\n")
endfunction()

# prints(pattern status program argument...): what a program of the tutorial prints in the work folder, and its exit status.
function(prints pattern status program)
  execute_process(
    COMMAND "./${program}" ${ARGN}
    WORKING_DIRECTORY "${work}"
    OUTPUT_VARIABLE output
    RESULT_VARIABLE result)
  if(NOT result EQUAL status OR NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "${program} ${ARGN}: exit status ${result}, and it prints\n${output}")
  endif()
endfunction()

# build_consumer(definition...): configures, builds and runs tests/consumer in the work folder.
function(build_consumer)
  file(REMOVE_RECURSE "${work}")
  run("${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${SOURCE_DIR}/tests/consumer" -B "${work}"
      "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" "-DCMAKE_BUILD_TYPE=${CONFIG}"
      "-DMOE64_EXAMPLE=${EXAMPLE}" ${ARGV})
  run("${CMAKE_COMMAND}" --build "${work}" --parallel 2)
  run("${work}/consumer")
endfunction()

if(STEP STREQUAL "install")
  file(REMOVE_RECURSE "${prefix}")
  run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")
  if(EXISTS "${prefix}/bin/moe64") # what it prints lies where shells and man look
    foreach(printed "completion bash|bash-completion/completions/moe64" "completion zsh|zsh/site-functions/_moe64"
                    "completion fish|fish/vendor_completions.d/moe64.fish" "man|man/man1/moe64.1")
      string(REGEX MATCH "^(.*)\\|(.*)$" printed "${printed}")
      set(file "${prefix}/share/${CMAKE_MATCH_2}")
      separate_arguments(words UNIX_COMMAND "${CMAKE_MATCH_1}")
      execute_process(COMMAND "${prefix}/bin/moe64" ${words} OUTPUT_FILE "${work}.txt" COMMAND_ERROR_IS_FATAL ANY)
      run("${CMAKE_COMMAND}" -E compare_files "${work}.txt" "${file}")
    endforeach()
  endif()

elseif(STEP STREQUAL "find_package")
  build_consumer("-DCMAKE_PREFIX_PATH=${prefix}" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)

elseif(STEP STREQUAL "add_subdirectory")
  # Without optimisation and without the CUDA kernels, minutes of compiling: both are in the installed library that the
  # other ways use.
  build_consumer("-DMOE64_SOURCE_DIR=${SOURCE_DIR}" "-DBUILD_SHARED_LIBS=${SHARED}" "-DMOE64_WERROR=${WERROR}"
                 "-DMOE64_CUDA=OFF" "-DCMAKE_BUILD_TYPE=Debug" "-DCMAKE_CXX_FLAGS_DEBUG=-O0")

elseif(STEP MATCHES "^(pkg_config|tutorial)$")
  find_program(pkg_config NAMES pkg-config pkgconf REQUIRED)
  set(ENV{PKG_CONFIG_PATH} "${prefix}/${LIBDIR}/pkgconfig")
  set(ENV{LD_LIBRARY_PATH} "${prefix}/${LIBDIR}")
  execute_process(
    COMMAND "${pkg_config}" --cflags --libs moe64
    OUTPUT_VARIABLE flags
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  file(REMOVE_RECURSE "${work}")
  file(MAKE_DIRECTORY "${work}")
  if(STEP STREQUAL "pkg_config")
    run("${CXX}" -std=c++20 -o "${work}/consumer" "${EXAMPLE}" ${flags})
    run("${work}/consumer")
    return()
  endif()
  # The programs of docs/tutorial-cpp.md that read a checkpoint, as they stand there, print what stands there.
  cut_program("#include <moe64/checkpoint.hpp>" "${work}/layer.cpp")
  cut_program("#include <moe64/moe64.h>" "${work}/look.c")
  run("${CXX}" -std=c++20 -o "${work}/layer" "${work}/layer.cpp" ${flags})
  run("${CC}" -std=c11 -o "${work}/look" "${work}/look.c" ${flags})
  set(like --like deepseek-v3 --scale-down 16 --layers 5)
  run("${prefix}/bin/moe64" synth "${work}/ds" ${like})
  run("${prefix}/bin/moe64" synth "${work}/lost" ${like} --break dropped-scale)
  prints("16 experts, gate_up: cpu has no FP8 GEMM in hardware\ny [^\n]*, gradient of the empty slot 0\\.0\n" 0 layer ds)
  prints("missing_scale: .load_layer. layer 3: tensor [^\n]* has no scale\n" 1 layer lost)
  prints("layer 3 takes 3146496 bytes\ninvalid_argument: .load_layer. there is no layer 0 with experts" 0 look)

elseif(STEP STREQUAL "symbols")
  # The library exports namespace moe64 and the C ABI, and nothing of what it is made with.
  find_program(nm REQUIRED NAMES nm)
  execute_process(COMMAND "${nm}" -D --defined-only "${prefix}/${LIBDIR}/libmoe64.so" OUTPUT_VARIABLE output
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^ \n]+\n" symbols "${output}")
  list(LENGTH symbols count)
  list(FILTER symbols EXCLUDE REGEX "^(moe64_|_ZNK?5moe64|_ZT[ISVT]N5moe64)")
  if(symbols OR count EQUAL 0)
    message(FATAL_ERROR "of ${count} exported symbols these are not of moe64: ${symbols}")
  endif()
  message(STATUS "${count} exported symbols, all of moe64")

else()
  message(FATAL_ERROR "unknown step '${STEP}'")
endif()
