# How every target of moe64 is compiled.
#
# -ffp-contract=off is not a warning but a promise: without it the compiler may fuse a*b+c in one loop and not in
# another, and the same token would get different bits from different tiles.

# moe64_compile_options(target): language level, warnings, floating point, visibility, checks.
function(moe64_compile_options target)
  set_target_properties(
    ${target}
    PROPERTIES C_STANDARD 11
               C_STANDARD_REQUIRED ON
               C_EXTENSIONS OFF
               CXX_STANDARD 20
               CXX_STANDARD_REQUIRED ON
               CXX_EXTENSIONS OFF
               C_VISIBILITY_PRESET hidden
               CXX_VISIBILITY_PRESET hidden
               CUDA_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON)
  set(warnings -Wall -Wextra -Wconversion -Wsign-conversion -Wshadow)
  if(MOE64_WERROR)
    list(APPEND warnings -Werror)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12
     AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
    # False alarms of GCC 12 and 13 inside std::string (GCC bug 105651) and std::sort of small arrays; clang and the
    # sanitizers look for the same mistakes.
    list(APPEND warnings -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:${warnings};-ffp-contract=off>")
  target_compile_definitions(${target} PRIVATE $<$<BOOL:${MOE64_CHECKS}>:MOE64_CHECKS=1>)
endfunction()
