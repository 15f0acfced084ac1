#include "cuda/kernels/quantize.hpp"

#include "core/number.hpp"
#include "cuda/eights.hpp"
#include "cuda/launch.hpp"
#include "cuda/operations.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace moe64::cuda {
namespace {

quantize_parameters parameters_of(quantize_args const& args) {
  tensor_view const x = args.x.as_stack();
  return {.x = x,
          .target = {.values = args.values.as_stack(),
                     .scales = args.scales.as_stack(),
                     .global = args.global.values,
                     .live_rows = args.live_rows,
                     .block_rows = args.layout.rows_per_scale(x.extent[1]),
                     .block_cols = args.layout.cols_per_scale(x.extent[2]),
                     .largest_code = largest_code(args.values.type),
                     .global_divides = args.global.applied == global_scale::direction::divide}};
}

void launch_globals(launcher& on, quantize_parameters const& p) {
  if (!p.target.global.present()) return;
  on.launch(quantize_globals_kernel(), {on.blocks_for(p.x.extent[0], 2), 1024}, p);
}

void run_reference(quantize_args const& args, stream where) {
  launcher on("quantize", args, where);
  quantize_parameters const p = parameters_of(args);
  launch_globals(on, p);
  constexpr int threads = 256;
  on.launch(quantize_scales_kernel(), {on.blocks_for(p.target.scales.size(), 8), threads}, p);
  index_t const tasks = ceil_div(p.x.size(), index_t{threads});
  on.launch(quantize_codes_kernel(), {on.blocks_for(tasks, 8), threads}, p);
}

support takes_eights(quantize_args const& args) {
  support const x = can_take_eights("x", args.x);
  return x ? can_take_eights("values", args.values) : x;
}

support takes_groups(quantize_args const& args) {
  quantize_parameters const p = parameters_of(args);
  index_t const cols = p.target.block_cols;
  bool const whole_lanes = cols >= 8 && cols <= 256 && std::has_single_bit(std::uint64_t(cols));
  if (p.target.block_rows != 1 || !whole_lanes) {
    return support::no("a scale for every " + std::to_string(p.target.block_rows) + " x " +
                       std::to_string(cols) + " numbers, not 1 x 8, 16, 32, 64, 128 or 256");
  }
  return takes_eights(args);
}

void run_groups(quantize_args const& args, stream where) {
  launcher on("quantize", args, where);
  quantize_parameters const p = parameters_of(args);
  launch_globals(on, p);
  index_t const tiles = p.x.extent[0] * ceil_div(p.x.extent[1], quantize_tile_rows) *
                        ceil_div(p.x.extent[2], quantize_tile_cols);
  on.launch(quantize_groups_kernel(p.x.type, p.target.values.type),
            {on.blocks_for(tiles, 4), quantize_groups_threads}, p);
}

/// Threads that hold a whole block of scales.
index_t threads_of(quantize_parameters const& p) {
  quantize_target const& t = p.target;
  index_t const cols = t.block_rows == 1 ? std::min(t.block_cols, p.x.extent[2]) : t.block_cols;
  return ceil_div(ceil_div(t.block_rows * cols, quantize_held(p.x.type)), 32) * 32;
}

support takes_blocks(quantize_args const& args) {
  quantize_parameters const p = parameters_of(args);
  quantize_target const& t = p.target;
  if (bits(t.values.type) != 8) {
    return support::no("values are " + std::string(name(t.values.type)) + ", not of 8 bits");
  }
  bool const whole_lanes =
      t.block_cols % 8 == 0 && std::has_single_bit(std::uint64_t(t.block_cols));
  constexpr index_t most = 1024;
  // Looked at one by one: their product may not fit.
  bool const fits = t.block_rows <= most * quantize_held(p.x.type) &&
                    std::min(t.block_cols, p.x.extent[2]) <= most * quantize_held(p.x.type) &&
                    threads_of(p) <= most;
  if (!fits || (t.block_rows != 1 && !whole_lanes)) {
    return support::no("a scale for every " + std::to_string(t.block_rows) + " x " +
                       std::to_string(t.block_cols) + " numbers");
  }
  return takes_eights(args);
}

void run_blocks(quantize_args const& args, stream where) {
  launcher on("quantize", args, where);
  quantize_parameters const p = parameters_of(args);
  index_t const threads = threads_of(p);
  index_t const blocks_each = std::min<index_t>(32, 1024 / threads);
  on.launch(quantize_blocks_kernel(p.x.type, p.target.values.type),
            {on.blocks_for(p.target.scales.size(), blocks_each), narrow<int>(threads)}, p);
}

constexpr implementation<quantize_args> quantizers[] = {
    {"groups", takes_groups, run_groups},
    {"blocks", takes_blocks, run_blocks},
    {"reference", any_call<quantize_args>, run_reference},
};

}  // namespace

implementation_list<quantize_args> quantize_list() { return quantizers; }

}  // namespace moe64::cuda
