#pragma once

#include "checkpoint/dialect/stored_matrix.hpp"
#include "checkpoint/load/opened.hpp"
#include "moe64/cpu.hpp"

#include <vector>

namespace moe64::test {

/// A matrix [outputs, inputs] of a checkpoint as numbers.
struct read_matrix {
  index_t rows = 0;
  index_t cols = 0;
  std::vector<float> numbers;
  [[nodiscard]] float operator()(index_t row, index_t col) const {
    return numbers[static_cast<std::size_t>(row * cols + col)];
  }
};

inline read_matrix read_stored(checkpoint::folder const& files,
                               checkpoint::stored_matrices const& stored, index_t slice,
                               bool transposed) {
  checkpoint::stored_region const region{slice, 0, stored.rows, 0, stored.cols};
  auto const needed = bytes_of(stored, region);
  std::vector<std::byte> values(static_cast<std::size_t>(needed.values));
  std::vector<std::byte> scales(static_cast<std::size_t>(needed.scales));
  std::vector<float> numbers(static_cast<std::size_t>(stored.rows * stored.cols));
  read_numbers(files, stored, region, values, scales,
               tensor_view::contiguous(numbers.data(), dtype::f32, {stored.rows, stored.cols}));
  if (!transposed) return {stored.rows, stored.cols, numbers};
  read_matrix turned{stored.cols, stored.rows, numbers};
  for (index_t r = 0; r < turned.rows; ++r) {
    for (index_t c = 0; c < turned.cols; ++c) {
      turned.numbers[static_cast<std::size_t>(r * turned.cols + c)] =
          numbers[static_cast<std::size_t>(c * turned.rows + r)];
    }
  }
  return turned;
}

/// Gate, up or down of one expert of layer `layer`, however it is stored.
inline read_matrix expert_matrix(checkpoint_reader const& reader, index_t layer,
                                 checkpoint::projection_kind projection, index_t expert) {
  auto const& state = reader.internals();
  checkpoint::layer_entry const& entry = *state.resolved.layer(layer);
  bool const gated = entry.up.present();
  checkpoint::projection_entry const& from =
      projection == checkpoint::projection_kind::down          ? entry.down
      : projection == checkpoint::projection_kind::up && gated ? entry.up
                                                               : entry.gate;
  checkpoint::expert_source const& source = from.experts[static_cast<std::size_t>(expert)];
  auto const stored = matrices_of(from.module, source.values, source.scales, source.global);
  read_matrix const all = read_stored(state.files, stored, source.slice, from.module.transposed);
  if (!from.module.fused) return all;
  index_t const inter = all.rows / 2;
  bool const interleaved = from.module.gate_up == gate_up_layout::interleaved;
  index_t const part = projection == checkpoint::projection_kind::up ? 1 : 0;
  read_matrix result{inter, all.cols, {}};
  for (index_t row = 0; row < inter; ++row) {
    index_t const at = interleaved ? 2 * row + part : part * inter + row;
    for (index_t col = 0; col < all.cols; ++col) result.numbers.push_back(all(at, col));
  }
  return result;
}

}  // namespace moe64::test
