#include "core/fail.hpp"
#include "moe64/quant.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace moe64 {
namespace {

std::uint64_t address(void const* data) { return reinterpret_cast<std::uintptr_t>(data); }

/// Bytes between places.
std::uint64_t step_bytes(tensor_view const& like, index_t step) {
  index_t const step_bits = step < 1 ? 0 : checked_mul(step, bits(like.type));
  if (step_bits == 0 || step_bits % 8 != 0) {
    fail(errc::invalid_argument, "[place_matrices] a step of {} elements of {} is not whole bytes",
         step, name(like.type));
  }
  return static_cast<std::uint64_t>(step_bits / 8);
}

}  // namespace

tensor_view place_matrices(std::span<void const* const> matrices, tensor_view const& like,
                           index_t step, std::span<index_t> table) {
  if (like.rank != 2) {
    fail(errc::shape_mismatch, "[place_matrices] like {} is not [rows, cols]", to_string(like));
  }
  if (table.size() != matrices.size()) {
    fail(errc::shape_mismatch, "[place_matrices] the table has {} entries for {} matrices",
         table.size(), matrices.size());
  }
  std::uint64_t const bytes = step_bytes(like, step);
  tensor_view stack = like.as_stack();
  stack.data = nullptr;
  stack.extent[0] = 0;
  stack.stride[0] = step;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (matrices[i] == nullptr) {
      fail(errc::invalid_argument, "[place_matrices] matrix {} of {} is null", i, matrices.size());
    }
    if (i == 0 || address(matrices[i]) < address(stack.data)) {
      stack.data = const_cast<void*>(matrices[i]);  // as tensor_view::contiguous
    }
  }
  auto const place = [&](std::size_t i) -> index_t {
    std::uint64_t const distance = address(matrices[i]) - address(stack.data);
    if (distance % bytes != 0) {
      fail(errc::invalid_argument,
           "[place_matrices] matrix {} at {} is {} bytes behind the lowest one at {}: no multiple "
           "of the step, {} elements of {}",
           i, matrices[i], distance, stack.data, step, name(like.type));
    }
    if (distance > static_cast<std::uint64_t>(std::numeric_limits<index_t>::max())) {
      fail(errc::size_overflow, "[place_matrices] matrix {} at {} is too far from {}", i,
           matrices[i], stack.data);
    }
    return static_cast<index_t>(distance / bytes);
  };
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    stack.extent[0] = std::max(stack.extent[0], checked_add(place(i), 1));
  }
  static_cast<void>(stack.span_bytes());
  for (std::size_t i = 0; i < matrices.size(); ++i) table[i] = place(i);
  return stack;
}

}  // namespace moe64
