# tests/fuzz/NAME_fuzz.cpp is a libFuzzer target with seeds in tests/fuzz/NAME/. With MOE64_BUILD_FUZZERS (clang) it
# becomes the libFuzzer program fuzz/NAME_fuzz; otherwise the test fuzz.NAME runs the seeds and some thousand mutations of
# them.

# moe64_fuzz_target(target source...)
function(moe64_fuzz_target target)
  add_executable(${target} ${ARGN})
  moe64_compile_options(${target})
  target_link_libraries(${target} PRIVATE moe64_for_tests moe64_host)
endfunction()

file(GLOB fuzz_sources CONFIGURE_DEPENDS fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  if(MOE64_BUILD_FUZZERS)
    moe64_fuzz_target(${name} "${source}")
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
  endif()
  if(MOE64_BUILD_TESTS)
    string(REGEX REPLACE "_fuzz$" "" subject ${name})
    set(target moe64_fuzz_${subject})
    moe64_fuzz_target(${target} "${source}" fuzz/driver.cpp)
    add_test(NAME fuzz.${subject} COMMAND ${target} "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${subject}" 200000)
    set_tests_properties(fuzz.${subject} PROPERTIES LABELS "fuzz;unit" TIMEOUT 300)
    add_dependencies(moe64_host_suite ${target})
  endif()
endforeach()
