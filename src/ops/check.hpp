#pragma once

#include "moe64/quant.hpp"
#include "moe64/routing.hpp"
#include "moe64/tensor.hpp"

#include <initializer_list>
#include <string>
#include <string_view>

/// The checks that every door makes. Each throws with the operation, the argument and the values.
namespace moe64 {

/// Any extent is legal here.
inline constexpr index_t any_extent = -1;

/// Checks the operands of one call of `operation` on `where`.
class checker {
 public:
  checker(char const* operation, moe64::device where) : operation_(operation), device_(where) {}

  /// Present, on the stream's device, of these extents (any_extent matches all), strides not
  /// negative, memory there.
  void shape(std::string_view argument, tensor_view const& tensor,
             std::initializer_list<index_t> extents) const;
  void type(std::string_view argument, tensor_view const& tensor,
            std::initializer_list<dtype> allowed) const;
  /// f32, bf16 or f16.
  void number(std::string_view argument, tensor_view const& tensor) const;
  void number(std::string_view argument, tensor_view const& tensor,
              std::initializer_list<index_t> extents) const;

  /// Two extents that must be the same.
  void equal(std::string_view left_name, index_t left, std::string_view right_name,
             index_t right) const;
  void at_least(std::string_view name, index_t value, index_t low) const;
  /// errc::invalid_argument with this message unless `condition`.
  void require(bool condition, std::string const& message) const;

  /// No two elements of an output share memory.
  void no_self_overlap(std::string_view argument, tensor_view const& tensor) const;
  /// An output and another operand do not share memory. Absent operands never do.
  void no_overlap(std::string_view output_name, tensor_view const& output,
                  std::string_view input_name, tensor_view const& input) const;
  /// The same of a stack with a table of places, and of the table. Between its matrices may be
  /// anything; which ones it has can be seen on the CPU alone.
  void no_overlap(std::string_view output_name, tensor_view const& output,
                  std::string_view input_name, tensor_view const& stack,
                  tensor_view const& places) const;

  /// An output does not overlap an array of the plan.
  void no_overlap(std::string_view output_name, tensor_view const& output,
                  routing_plan const& plan) const;

  void quantized(std::string_view argument, quantized_view const& q) const;
  /// Expert e has matrix e: for operands that are no weights of experts, or small.
  void in_order(std::string_view argument, quantized_view const& q) const;
  /// Codes [rows, cols] with the scales of `layout`, row or group, that an operation makes of
  /// its result. A global scale it cannot write: that needs all rows first.
  void quantized_rows(std::string_view argument, tensor_view const& codes,
                      tensor_view const& scales, granularity const& layout) const;
  void weights(std::string_view argument, weight_stack const& stack) const;
  void plan(routing_plan const& plan) const;
  void live_rows(tensor_view const& live_rows) const;

  [[nodiscard]] char const* operation() const noexcept { return operation_; }
  [[nodiscard]] moe64::device device() const noexcept { return device_; }

 private:
  void places(std::string_view argument, tensor_view const& table, tensor_view const& stack) const;

  char const* operation_;
  moe64::device device_;
};

}  // namespace moe64
