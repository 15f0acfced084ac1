# --- the CUDA backend, where it is built ----------------------------------------------------------------------------------

set(moe64_door moe64_host)
if(MOE64_HAVE_CUDA)
  add_library(moe64_with_device STATIC ${moe64_host_objects} ${moe64_device_objects} ${moe64_side_objects})
  set_target_properties(moe64_with_device PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(moe64_with_device INTERFACE Threads::Threads CUDA::cudart_static)
  set(moe64_door moe64_with_device)
endif()

# --- the host side of CUDA, on a mock of its runtime: in every build ----------------------------------------------------

file(GLOB host_tests CONFIGURE_DEPENDS cuda_host/*_test.cpp)
if(NOT MOE64_HAVE_CUDA) # whole operations need the launchers
  list(FILTER host_tests EXCLUDE REGEX "/door_[a-z_]*test\\.cpp$")
elseif(NOT MOE64_HAVE_HOPPER) # calls functions of src/cuda/gemm/sm90
  list(FILTER host_tests EXCLUDE REGEX "/door_tiles_test\\.cpp$")
endif()
add_executable(moe64_cuda_host ${host_tests} cuda_host/mock_runtime.cpp)
moe64_test_code(moe64_cuda_host)
target_link_libraries(moe64_cuda_host PRIVATE moe64_test_support ${moe64_door})
moe64_gtest_program(moe64_cuda_host unit 120)
add_dependencies(moe64_unit_suite moe64_cuda_host)

if(NOT MOE64_HAVE_CUDA)
  return()
endif()

# --- the suites of operations once more, for a CUDA device ----------------------------------------------------------------
#
# With MOE64_TEST_CUDA target() (tests/support/target.hpp) is the first CUDA device. Without one every test is skipped.
# What is about the CPU alone (tests/unit/cpu: threads, vector widths, its codes) and the reading of files are left out.

moe64_test_support_library(moe64_test_support_cuda MOE64_TEST_CUDA=1)

# moe64_cuda_program(name label seconds [EACH] source...): on the real runtime, skipped where it has no device.
function(moe64_cuda_program name label seconds)
  cmake_parse_arguments(PARSE_ARGV 3 arg "EACH" "" "")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS} cuda/main.cpp)
  moe64_test_code(${name} MOE64_TEST_CUDA=1)
  target_link_libraries(${name} PRIVATE moe64_test_support_cuda moe64_with_device)
  if(arg_EACH)
    set(each EACH)
  endif()
  moe64_gtest_program(${name} ${label} ${seconds} ${each} RESOURCE_LOCK cuda)
endfunction()

# moe64_cuda_suite(name seconds source...): moe64_<name>_cuda; also as moe64_<name>_emulated, on the mock runtime with
# the kernels of the CPU, which shows without a GPU that calls are moved, refused and compared as they should be.
function(moe64_cuda_suite name seconds)
  add_library(moe64_${name}_cuda_objects OBJECT ${ARGN})
  moe64_test_code(moe64_${name}_cuda_objects MOE64_TEST_CUDA=1)
  moe64_cuda_program(moe64_${name}_cuda cuda ${seconds} $<TARGET_OBJECTS:moe64_${name}_cuda_objects>)
  set(emulated moe64_${name}_emulated)
  add_executable(${emulated} $<TARGET_OBJECTS:moe64_${name}_cuda_objects> cuda_host/mock_runtime.cpp
                             cuda_host/emulated_backend.cpp)
  moe64_test_code(${emulated} MOE64_TEST_CUDA=1)
  target_link_libraries(${emulated} PRIVATE moe64_test_support_cuda moe64_host)
  moe64_gtest_program(${emulated} emulated ${seconds} FILTER ${cpu_refuses})
endfunction()

# Where the CPU refuses what a device cannot see.
set(cpu_refuses
    "-*.other_ids_*:activate.only_live_rows:quantize.only_live_rows_are_read_and_written:*.ids_that_are_no_expert")

file(GLOB operations CONFIGURE_DEPENDS unit/ops/*_test.cpp unit/layer/*_test.cpp)
file(GLOB properties CONFIGURE_DEPENDS property/*_test.cpp)
list(FILTER properties EXCLUDE REGEX "/threads_test\\.cpp$")
file(GLOB gradients CONFIGURE_DEPENDS gradient/*_test.cpp)
list(FILTER gradients EXCLUDE REGEX "/oracle_gradient_test\\.cpp$")
moe64_cuda_suite(unit 300 ${operations})
moe64_cuda_suite(property 600 ${properties})
moe64_cuda_suite(gradient 300 ${gradients})

file(GLOB card_tests CONFIGURE_DEPENDS cuda/*_test.cpp)
if(card_tests)
  moe64_cuda_program(moe64_cuda cuda 300 ${card_tests})
endif()

file(GLOB huge_tests CONFIGURE_DEPENDS huge_cuda/*_test.cpp)
moe64_cuda_program(moe64_huge_cuda huge_cuda 900 EACH ${huge_tests})

# --- mistakes on purpose ---------------------------------------------------------------------------------------------------

add_executable(moe64_cuda_fault cuda_fault/main.cpp cuda_fault/kernels.cu)
moe64_compile_options(moe64_cuda_fault)
target_link_libraries(moe64_cuda_fault PRIVATE moe64_for_tests moe64_with_device)
add_test(NAME cuda.fault_is_reported_by_its_name COMMAND moe64_cuda_fault nowhere)
set(fault_tests cuda.fault_is_reported_by_its_name)
find_program(MOE64_COMPUTE_SANITIZER compute-sanitizer HINTS "${CUDAToolkit_BIN_DIR}")
if(MOE64_COMPUTE_SANITIZER) # each of its tools is shown to find what it is there for
  foreach(pair memcheck:bounds initcheck:uninitialised racecheck:race)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 tool)
    list(GET pair 1 kind)
    set(name cuda.${tool}_finds_${kind})
    # Neighbouring allocations leave no gap that memcheck could see a write in.
    set(options "$<$<STREQUAL:${tool},memcheck>:--padding=256>")
    add_test(NAME ${name} COMMAND ${MOE64_COMPUTE_SANITIZER} --tool ${tool} ${options}
                                  $<TARGET_FILE:moe64_cuda_fault> ${kind} COMMAND_EXPAND_LISTS)
    set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION "(ERROR|RACECHECK) SUMMARY: [1-9]"
                                            SKIP_REGULAR_EXPRESSION "skipped: |Device not supported")
    list(APPEND fault_tests ${name})
  endforeach()
endif()
set_tests_properties(${fault_tests} PROPERTIES LABELS cuda TIMEOUT 120 RESOURCE_LOCK cuda SKIP_RETURN_CODE 77)
