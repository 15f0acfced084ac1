#include "checkpoint/dialect/module_format.hpp"
#include "moe64/index.hpp"

#include <fmt/format.h>

namespace moe64::checkpoint {

scale_grid grid_of(module_format const& format, index_t rows) {
  switch (format.scales) {
    case scale_codec::none:
      return {};
    case scale_codec::blk:
    case scale_codec::blk_pow2:
    case scale_codec::blk4d:
      return {ceil_div(rows, format.block_rows), ceil_div(format.cols, format.block_cols)};
    case scale_codec::mx32:
    case scale_codec::nv16_mul:
    case scale_codec::nv16_div:
    case scale_codec::grp:
      return {rows, ceil_div(format.cols, format.block_cols)};
    case scale_codec::row:
    case scale_codec::col3d:
      return {rows, 1};
    case scale_codec::tensor:
      return {1, 1};
  }
  return {};
}

std::vector<index_t> scale_shape(module_format const& format) {
  if (format.scales == scale_codec::tensor) return {};
  scale_grid grid = grid_of(format, format.rows);
  if (format.fused && format.grid == fused_grid::halves) {
    grid = grid_of(format, format.rows / 2);
    grid.rows *= 2;
  }
  std::vector<index_t> shape;
  if (format.stacked) shape.push_back(format.experts);
  if (format.scales == scale_codec::blk4d) {
    shape.insert(shape.end(), {grid.rows, 1, grid.cols, 1});
  } else if (format.scales == scale_codec::col3d) {
    // gate_up [E, 1, 2I], but down [E, H, 1], although both weights are transposed
    if (format.fused) {
      shape.insert(shape.end(), {1, grid.rows});
    } else {
      shape.insert(shape.end(), {grid.rows, 1});
    }
  } else if (format.transposed) {
    shape.insert(shape.end(), {grid.cols, grid.rows});
  } else {
    shape.insert(shape.end(), {grid.rows, grid.cols});
  }
  return shape;
}

bool is_squeezed(std::span<index_t const> shape, std::span<index_t const> expected) {
  std::size_t at = 0;
  for (index_t const extent : expected) {
    if (at < shape.size() && shape[at] == extent) {
      ++at;
    } else if (extent != 1) {
      return false;
    }
  }
  // one number may also be [1] or [1, 1]
  while (expected.empty() && at < shape.size() && shape[at] == 1) ++at;
  return at == shape.size();
}

bool straddles(module_format const& format) {
  bool const blocks = format.scales == scale_codec::blk || format.scales == scale_codec::blk_pow2 ||
                      format.scales == scale_codec::blk4d;
  return format.fused && blocks && format.grid == fused_grid::fused &&
         (format.rows / 2) % format.block_rows != 0;
}

std::string shape_text(std::span<index_t const> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size() && i < 8; ++i) {
    text += (i == 0 ? "" : ", ") + fmt::format("{}", shape[i]);
  }
  return text + (shape.size() > 8 ? ", ...]" : "]");
}

}  // namespace moe64::checkpoint
