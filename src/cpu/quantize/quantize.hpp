#pragma once

#include "cpu/runtime/parallel.hpp"
#include "cpu/runtime/rows.hpp"
#include "moe64/ops.hpp"

/// What the implementations of quantize share: the scales.
namespace moe64::cpu {

struct magnitude {
  float largest = 0.0F;  // of the finite numbers
  bool finite = true;    // all of them

  void add(float const* run, index_t count);
};

/// Where scales go: a stack of grids for codes of one type.
struct scale_target {
  tensor_view scales;
  dtype code;
  global_scale global = {};
};

/// Operands of one call as stacks.
struct quantize_view {
  tensor_view x, values, scales;
  quantize_args const& args;

  explicit quantize_view(quantize_args const& call)
      : x(call.x.as_stack()),
        values(call.values.as_stack()),
        scales(call.scales.as_stack()),
        args(call) {}

  [[nodiscard]] scale_target target() const { return {scales, values.type, args.global}; }
};

/// Write the scale of one block; the factor that its codes will be multiplied with when they are
/// read, NaN for a block that holds NaN or infinity.
float write_scale(scale_target const& to, magnitude const& size, float global, index_t expert,
                  index_t grid_row, index_t grid_col);

/// Numbers to quotients by the factor of their block, clamped to the largest code; zeros where the
/// factor is NaN.
void divide_numbers(float* run, index_t count, float factor, float limit);

/// Rows and columns [row_begin, row_end) x [col_begin, col_end) of one matrix.
struct block_range {
  index_t row_begin, row_end, col_begin, col_end;
};

/// The codes of one block: its numbers divided by the factor, clamped to the largest code; zeros
/// where the factor is NaN.
void write_codes(quantize_view const& p, index_t expert, block_range const& block, float factor);

/// The global scale of one expert: such that the largest block scale becomes the largest e4m3.
float global_for(magnitude const& size, global_scale::direction applied);

/// The global scales of all experts, where asked for; measure(expert) is the magnitude of one.
template <class Measure>
void write_globals(quantize_args const& args, index_t experts, stream where,
                   Measure const& measure) {
  if (!args.global.values.present()) return;
  parallel_for(where, experts, [&](index_t expert) {
    store_number(args.global.values, global_for(measure(expert), args.global.applied), expert);
  });
}

}  // namespace moe64::cpu
