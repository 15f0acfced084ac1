#pragma once

#include "moe64/tensor.hpp"

#include <cstdint>

/// What the implementations of gather share: rows as bytes.
namespace moe64::cpu {

struct byte_row {
  std::uint8_t* data;
  index_t bytes;
};

/// Whether the elements of each row of a matrix lie side by side.
[[nodiscard]] bool has_byte_rows(tensor_view const& matrix);
/// Row i of such a matrix.
[[nodiscard]] byte_row bytes_of_row(tensor_view const& matrix, index_t i);
/// Row j of `to` = row i of `from`, bit for bit; both [rows, cols] of one type.
void copy_row(tensor_view const& from, index_t i, tensor_view const& to, index_t j);

}  // namespace moe64::cpu
