#include "checkpoint/dialect/storage_grid.hpp"

#include <utility>

namespace moe64::checkpoint {

storage_grid storage_of(module_format const& format) {
  grid_axis outputs{format.rows, format.rows, 0};
  grid_axis inputs{format.cols, format.cols, 0};
  switch (format.scales) {
    case scale_codec::none:
    case scale_codec::tensor:
      break;
    case scale_codec::blk:
    case scale_codec::blk_pow2:
    case scale_codec::blk4d:
      outputs.block = format.block_rows;
      inputs.block = format.block_cols;
      if (format.fused && format.grid == fused_grid::halves) outputs.half = format.rows / 2;
      break;
    case scale_codec::mx32:
    case scale_codec::nv16_mul:
    case scale_codec::nv16_div:
    case scale_codec::grp:
      outputs.block = 1;
      inputs.block = format.block_cols;
      break;
    case scale_codec::row:
    case scale_codec::col3d:
      outputs.block = 1;
      break;
  }
  if (format.transposed) std::swap(outputs, inputs);
  // eight nibbles share a word, and a row starts with a new one
  bool const words = format.values == value_codec::int4x8;
  return {outputs, inputs, words ? align_up(inputs.extent, 8) : inputs.extent};
}

}  // namespace moe64::checkpoint
