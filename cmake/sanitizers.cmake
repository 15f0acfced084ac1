# MOE64_SANITIZE=address,undefined or thread: for every target of the build. The address sanitizer may see less: what is
# not under test (moe64_trusted_code) is left out unless MOE64_SANITIZE_WHOLE, to save its time. The thread sanitizer may
# not: it would report nonsense.
option(MOE64_SANITIZE_WHOLE "Sanitize the oracle and the code of the tests, too" OFF)

# moe64_trusted_code(target kind...): code that judges, of which these kinds of the address and undefined-behaviour
# sanitizers (all, undefined) need not look at.
function(moe64_trusted_code target)
  if(MOE64_SANITIZE MATCHES "address" AND NOT MOE64_SANITIZE_WHOLE)
    if("all" IN_LIST ARGN) # the common header was precompiled with them
      set_target_properties(${target} PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)
    endif()
    list(TRANSFORM ARGN PREPEND -fno-sanitize=)
    target_compile_options(${target} PRIVATE ${ARGN})
  endif()
endfunction()

if(MOE64_SANITIZE)
  add_compile_options(-fsanitize=${MOE64_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MOE64_SANITIZE})
endif()
if(MOE64_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "moe64: MOE64_BUILD_FUZZERS needs clang (libFuzzer), not ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
