#pragma once

#include "moe64/cpu.hpp"
#include "moe64/tensor.hpp"

#include <cstdint>
#include <vector>

namespace moe64::cases {

/// random: normal-like activations, weights of about 1 / sqrt(fan in), a different scale in every
/// block as far as the type of the scales allows. exact: small integers, scales and slot weights
/// that are powers of two, and so few non-zero weights per row and column that every f32 sum and
/// every rounding on the way is exact, in any order.
enum class data_mode { random, exact };

/// Which tensor a number belongs to: the same element of two tensors shall not be the same number.
enum class tensor_id : std::uint64_t {
  x,
  dy,
  rows,
  row_scales,
  logits,
  selection_bias,
  expert_ids,
  sentinels,
  slot_weights,
  low_rank,
  gate_up,
  down = gate_up + 8,  // a projection has its values, scales, global scale, bias, and LoRA a and b
};

/// 64 well-mixed bits of (seed, tensor, element): a counter, not a sequence, so that any element
/// can be made alone.
[[nodiscard]] std::uint64_t random_bits(std::uint64_t seed, tensor_id tensor, index_t element);

/// A distribution as a table of codes of one type; a hash picks from it. Making a number is one
/// look-up, so that gigabytes of 8-bit and 4-bit weights are cheap, and no encoder is shared with
/// the library.
class number_source {
 public:
  /// Normal with this standard deviation, nothing beyond 4.1 of them.
  [[nodiscard]] static number_source normal(dtype type, double deviation);
  /// Between low and high, evenly in the logarithm.
  [[nodiscard]] static number_source spread(dtype type, double low, double high);
  /// Each of the values equally often.
  [[nodiscard]] static number_source one_of(dtype type, std::vector<double> const& values);
  /// -1 or 1 with this density (at least one in 8192), otherwise 0.
  [[nodiscard]] static number_source sparse_signs(dtype type, double density);

  /// Fill [begin, end) of dimension 0. The last dimension of `tensor` must be contiguous.
  void fill(tensor_view const& tensor, std::uint64_t seed, tensor_id id, index_t begin, index_t end,
            cpu_executor* executor) const;
  void fill(tensor_view const& tensor, std::uint64_t seed, tensor_id id,
            cpu_executor* executor) const {
    fill(tensor, seed, id, 0, tensor.extent[0], executor);
  }

 private:
  number_source(dtype type, std::vector<double> const& numbers);
  void fill_row(tensor_view const& tensor, index_t offset, index_t first_element, index_t count,
                std::uint64_t key) const;

  dtype type_;
  std::vector<std::uint32_t> codes_;  // table_size of them
};

/// The part of a tensor's memory that belongs to [begin, end) of dimension 0, set to 0xff.
void poison(tensor_view const& tensor, index_t begin, index_t end);

/// `tensor` with tensor_id counted on by `offset`: the values, scales, ... of a projection.
[[nodiscard]] constexpr tensor_id operator+(tensor_id id, int offset) noexcept {
  return static_cast<tensor_id>(static_cast<std::uint64_t>(id) +
                                static_cast<std::uint64_t>(offset));
}

}  // namespace moe64::cases
