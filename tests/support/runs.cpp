#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "support/runs.cpp"
#include "cpu/simd/simd.hpp"
// after simd.hpp
#include "cpu/gemm/portable/codes.hpp"
#include "cpu/runtime/features.hpp"
#include "support/runs.hpp"

#include <vector>

HWY_BEFORE_NAMESPACE();
namespace moe64::cpu::HWY_NAMESPACE {

test::run_functions run_functions_of(char const* name, support (*has)());
test::run_functions run_functions_of(char const* name, support (*has)()) {
  return {name, has, load_run, store_run, round_run, load_scaled_run};
}

}  // namespace moe64::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moe64::test {

std::span<run_functions const> run_widths() {
  static std::vector<run_functions> const found = [] {
    std::vector<run_functions> const all = {
#if defined(__x86_64__)
      cpu::N_AVX3::run_functions_of("avx512", cpu::has_avx512),
      cpu::N_AVX2::run_functions_of("avx2", cpu::has_avx2),
#endif
      cpu::N_SCALAR::run_functions_of("scalar", support::yes),
    };
    std::vector<run_functions> result;
    for (run_functions const& width : all) {
      if (width.has()) result.push_back(width);
    }
    return result;
  }();
  return found;
}

}  // namespace moe64::test
#endif
