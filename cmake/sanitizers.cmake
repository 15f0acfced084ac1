# MOE64_SANITIZE=address,undefined or thread: for every target of the build, because a sanitizer that sees only half of
# a program reports nonsense.
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
