# A room is a folder of src/ (ARCHITECTURE.md names them). Each becomes an object library, so that libmoe64 and the
# tests, which look behind the hidden symbols, link the same objects. A folder that does not exist is not an error.

# moe64_sources(out folder): the sources of one folder, not of its sub-folders (kernels of CUDA excepted).
function(moe64_sources out folder)
  set(base "${PROJECT_SOURCE_DIR}/${folder}")
  file(GLOB sources CONFIGURE_DEPENDS "${base}/*.cpp")
  if(MOE64_HAVE_CUDA)
    file(GLOB kernels CONFIGURE_DEPENDS "${base}/*.cu" "${base}/kernels/*.cu")
    list(APPEND sources ${kernels})
  endif()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# moe64_object_library(target source...): compiled as part of moe64; sees include/ and src/; fmt as headers only.
function(moe64_object_library target)
  add_library(${target} OBJECT ${ARGN})
  moe64_compile_options(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${target} PRIVATE fmt::fmt-header-only Threads::Threads)
  target_compile_definitions(${target} PRIVATE $<$<NOT:$<BOOL:${BUILD_SHARED_LIBS}>>:MOE64_STATIC>)
endfunction()

# moe64_room(name [EXTRA file...]): src/<name>/ as the object library moe64_<name>_objects, a part of libmoe64.
function(moe64_room name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "EXTRA")
  moe64_sources(sources src/${name})
  foreach(file IN LISTS arg_EXTRA)
    file(GLOB found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${file}")
    list(APPEND sources ${found})
  endforeach()
  if(name STREQUAL "cpu" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER sources EXCLUDE REGEX "_(amx|bf16|vbmi|vnni)[a-z_]*\\.cpp$") # instruction sets of x86
  endif()
  if(name STREQUAL "cuda")
    if(MOE64_HAVE_CUDA)
      list(FILTER sources EXCLUDE REGEX "_absent\\.cpp$")
    else() # no kernels: what remains answers that there are no devices, and is tested with a runtime of its own
      list(FILTER sources INCLUDE REGEX "/(device|launch|memory|[a-z]+_absent)\\.cpp$")
    endif()
  endif()
  if(NOT sources)
    return()
  endif()
  set(target moe64_${name}_objects)
  moe64_object_library(${target} ${sources})
  target_compile_definitions(${target} PRIVATE MOE64_BUILDING MOE64_VERSION="${PROJECT_VERSION}")
  if(name STREQUAL "cpu")
    target_include_directories(${target} SYSTEM PRIVATE "${MOE64_HIGHWAY_INCLUDE}")
    # GCC takes the deliberately undefined operands of its own vector intrinsics for mistakes of their callers.
    target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-uninitialized>")
  elseif(name STREQUAL "checkpoint")
    target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
  elseif(name STREQUAL "cuda" AND MOE64_HAVE_CUDA)
    target_link_libraries(${target} PRIVATE CUDA::cudart_static CUDA::nvtx3)
    # -fmad=false is the -ffp-contract=off of device code; relaxed constexpr lets kernels use the codecs of core.
    target_compile_options(
      ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-fmad=false;-lineinfo;--threads=2>"
                        "$<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all;--Werror=all-warnings>")
  endif()
  set_property(GLOBAL APPEND PROPERTY MOE64_ROOM_OBJECTS $<TARGET_OBJECTS:${target}>)
endfunction()

# moe64_side_library(target FOLDER folder LINK lib...): a static library beside moe64, never installed. Its objects are
# also the target <target>_objects.
function(moe64_side_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FOLDER" "LINK")
  moe64_sources(sources ${arg_FOLDER})
  if(NOT sources)
    return()
  endif()
  moe64_object_library(${target}_objects ${sources})
  target_include_directories(${target}_objects PRIVATE "${PROJECT_SOURCE_DIR}/cli")
  add_library(${target} STATIC $<TARGET_OBJECTS:${target}_objects>)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/cli")
  foreach(library IN LISTS arg_LINK)
    if(TARGET ${library})
      target_link_libraries(${target} PUBLIC ${library})
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY MOE64_SIDE_OBJECTS $<TARGET_OBJECTS:${target}_objects>)
endfunction()
