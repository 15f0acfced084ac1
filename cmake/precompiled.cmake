# One precompiled header for all host code of moe64 (the standard library and fmt), one for the tests (and GoogleTest).
# A file still includes what it uses: `make tidy` and `make release` compile without.
option(MOE64_PRECOMPILE "Precompile the headers of the standard library, fmt and GoogleTest (GCC only)" ON)

set(MOE64_COMMON_HEADERS
    <algorithm>
    <array>
    <bit>
    <charconv>
    <chrono>
    <cmath>
    <cstdint>
    <cstring>
    <deque>
    <filesystem>
    <functional>
    <limits>
    <map>
    <memory>
    <numeric>
    <optional>
    <set>
    <span>
    <string>
    <string_view>
    <tuple>
    <utility>
    <vector>
    <fmt/format.h>)

# moe64_precompile(target header...): makes the header that others reuse. The targets that do are compiled with the same
# options; their definitions may differ where these headers do not look at them.
function(moe64_precompile target)
  if(MOE64_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} PRIVATE ${ARGN})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>) # so that ccache can see it
  endif()
endfunction()

function(moe64_reuse_precompiled target owner)
  if(MOE64_PRECOMPILE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} REUSE_FROM ${owner})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()
