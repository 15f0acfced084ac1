# A room is a folder of src/ (ARCHITECTURE.md names them). Each becomes an object library, so that libmoe64, the tool
# without CUDA and the tests, which look behind the hidden symbols, link the same objects. A folder that does not exist is
# not an error.
#
# Three lists of objects come out of it:
#   MOE64_HOST_OBJECTS    every room but the CUDA backend
#   MOE64_ABSENT_OBJECTS  what stands in the place of the CUDA backend where it is not built, or not wanted
#   MOE64_DEVICE_OBJECTS  the CUDA backend: launchers and kernels; empty in a build without it

# moe64_sources(out folder): the C++ sources of a folder and of all below it.
function(moe64_sources out folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# moe64_exclude_folders(list folder...): takes what lies in these folders out of the list.
macro(moe64_exclude_folders list)
  foreach(folder ${ARGN})
    list(FILTER ${list} EXCLUDE REGEX "^${PROJECT_SOURCE_DIR}/${folder}/")
  endforeach()
endmacro()

# moe64_object_library(target source...): compiled as part of moe64; sees include/ and src/.
function(moe64_object_library target)
  add_library(${target} OBJECT ${ARGN})
  moe64_compile_options(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE moe64_fmt Threads::Threads)
  target_compile_definitions(${target} PRIVATE $<$<NOT:$<BOOL:${BUILD_SHARED_LIBS}>>:MOE64_STATIC>)
  if(NOT target STREQUAL "moe64_fmt_objects")
    moe64_reuse_precompiled(${target} moe64_fmt_objects)
  endif()
endfunction()

# moe64_add_objects(list target): the objects of a target become a part of one of the three lists.
function(moe64_add_objects list target)
  set_property(GLOBAL APPEND PROPERTY ${list} $<TARGET_OBJECTS:${target}>)
endfunction()

# moe64_room(name [EXTRA file...] [LINK lib...]): src/<name>/ as the object library moe64_<name>_objects.
function(moe64_room name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "EXTRA;LINK")
  moe64_sources(sources src/${name})
  foreach(file IN LISTS arg_EXTRA)
    file(GLOB found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${file}")
    list(APPEND sources ${found})
  endforeach()
  list(FILTER sources EXCLUDE REGEX "/fmt_library\\.cpp$") # a target of its own, see cmake/fmt.cmake
  if(name STREQUAL "cpu" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # instruction sets of x86
    moe64_exclude_folders(sources src/cpu/gemm/amx src/cpu/gemm/bf16 src/cpu/gemm/vnni src/cpu/quantize/vbmi)
  endif()
  if(NOT sources)
    return()
  endif()
  set(target moe64_${name}_objects)
  moe64_object_library(${target} ${sources})
  target_link_libraries(${target} PRIVATE ${arg_LINK})
  if(name STREQUAL "cpu")
    target_include_directories(${target} SYSTEM PRIVATE "${MOE64_HIGHWAY_INCLUDE}")
    # GCC takes the deliberately undefined operands of its own vector intrinsics for mistakes of their callers.
    target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized>")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Debug")
      # Without any optimisation GCC does not take the operands of Highway's functions for the constants that they are.
      target_compile_options(${target} PRIVATE -O1)
      set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    endif()
  endif()
  moe64_add_objects(MOE64_HOST_OBJECTS ${target})
endfunction()

# moe64_device_code(target): how launchers and kernels are compiled.
function(moe64_device_code target)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static CUDA::nvtx3)
  # -fmad=false is the -ffp-contract=off of device code; relaxed constexpr lets kernels use the codecs of core.
  target_compile_options(
    ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-fmad=false;-lineinfo;--threads=2>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all;--Werror=all-warnings>")
endfunction()

# moe64_cuda_room(): src/cuda/ as four object libraries. What finds devices and launches (runtime/) is in every build, and
# answers without CUDA (absent/) that there are no devices; the tests give it a runtime of their own.
function(moe64_cuda_room)
  moe64_sources(host src/cuda/runtime)
  moe64_object_library(moe64_cuda_host_objects ${host})
  moe64_add_objects(MOE64_HOST_OBJECTS moe64_cuda_host_objects)
  moe64_sources(absent src/cuda/absent)
  moe64_object_library(moe64_cuda_absent_objects ${absent})
  moe64_add_objects(MOE64_ABSENT_OBJECTS moe64_cuda_absent_objects)
  if(NOT MOE64_HAVE_CUDA)
    return()
  endif()

  moe64_sources(launchers src/cuda)
  moe64_exclude_folders(launchers src/cuda/runtime src/cuda/absent)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cuda/kernels/*.cu")
  moe64_instances(instances)
  list(APPEND kernels ${instances})
  set(sm90_kernels ${kernels})
  list(FILTER sm90_kernels INCLUDE REGEX "/kernels/gemm/sm90/")
  list(REMOVE_ITEM kernels ${sm90_kernels})
  if(MOE64_HAVE_HOPPER)
    moe64_exclude_folders(launchers src/cuda/gemm/sm90_absent)
    moe64_object_library(moe64_sm90_objects ${sm90_kernels})
    moe64_device_code(moe64_sm90_objects)
    set_target_properties(moe64_sm90_objects PROPERTIES CUDA_ARCHITECTURES 90a-real)
    target_include_directories(moe64_sm90_objects SYSTEM PRIVATE "${MOE64_CUTLASS_INCLUDE}")
    moe64_add_objects(MOE64_DEVICE_OBJECTS moe64_sm90_objects)
  else()
    moe64_exclude_folders(launchers src/cuda/gemm/sm90)
  endif()
  moe64_object_library(moe64_cuda_objects ${launchers} ${kernels})
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
  set_property(SOURCE src/cuda/cuda_runtime.cpp APPEND PROPERTY COMPILE_DEFINITIONS
                                                                MOE64_CUDA_ARCHITECTURES="${architectures}")
  moe64_device_code(moe64_cuda_objects)
  moe64_add_objects(MOE64_DEVICE_OBJECTS moe64_cuda_objects)
endfunction()

# moe64_side_objects(target FOLDER folder): objects beside the library, never installed.
function(moe64_side_objects target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FOLDER" "")
  moe64_sources(sources ${arg_FOLDER})
  if(NOT sources)
    return()
  endif()
  moe64_object_library(${target} ${sources})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cli")
  moe64_add_objects(MOE64_SIDE_OBJECTS ${target})
endfunction()
