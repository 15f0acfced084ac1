#pragma once

#include "cpu/operations.hpp"
#include "cpu/runtime/features.hpp"

/// The functions that a file with simd.hpp defines once per instruction set, as entries of an
/// implementation list.
///
///   MOE64_DECLARE_WIDTHS(gather_args, gather_simd)          at namespace moe64::cpu
///   MOE64_WIDTHS(gather_args, gather_simd, any_call<gather_args>)   inside the list

#if defined(__x86_64__)

#define MOE64_DECLARE_WIDTHS(Args, run)     \
  namespace N_AVX3 {                        \
  void run(Args const& args, stream where); \
  }                                         \
  namespace N_AVX2 {                        \
  void run(Args const& args, stream where); \
  }                                         \
  namespace N_SCALAR {                      \
  void run(Args const& args, stream where); \
  }

/// `takes` says whether the code can run a call, whatever the processor.
// clang-format off
#define MOE64_WIDTHS(Args, run, takes)                              \
  {"avx512", where<has_avx512, Args, takes>, N_AVX3::run},    \
  {"avx2", where<has_avx2, Args, takes>, N_AVX2::run},        \
  {"scalar", takes, N_SCALAR::run}
// clang-format on

#else

#define MOE64_DECLARE_WIDTHS(Args, run)     \
  namespace N_SCALAR {                      \
  void run(Args const& args, stream where); \
  }
#define MOE64_WIDTHS(Args, run, takes) \
  { "scalar", takes, N_SCALAR::run }

#endif
