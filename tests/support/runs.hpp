#pragma once

#include "core/view.hpp"
#include "moe64/error.hpp"
#include "moe64/quant.hpp"

#include <span>

namespace moe64::test {

/// The functions of cpu/quantize/codes_simd.hpp as compiled for one instruction set.
struct run_functions {
  char const* name;
  support (*has)();
  void (*load)(row_view const& row, index_t begin, index_t count, float* out);
  void (*store)(row_view const& row, index_t begin, index_t count, float const* in);
  void (*round)(dtype type, index_t count, float* values);
  void (*load_scaled)(quantized_view const& q, index_t expert, index_t row, index_t begin,
                      index_t count, float* out);
};

/// Those that this machine can run, the widest first.
[[nodiscard]] std::span<run_functions const> run_widths();

}  // namespace moe64::test
