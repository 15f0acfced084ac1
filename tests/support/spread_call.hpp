#pragma once

#include "support/buffer.hpp"

#include <functional>
#include <string>
#include <vector>

namespace moe64::test {

/// A small call of an operation, repeated with one operand at a time spread over huge strides: the
/// elements then lie on both sides of 2^31 and 2^32, counted in elements and in bytes, and the
/// result must keep its bits. A result that is spread must also leave all other memory alone.
class spread_call {
 public:
  /// Places of the operands are counted in the order of these calls.
  spread_call& input(std::string name, test_tensor tensor);
  spread_call& output(std::string name, dtype type, std::vector<index_t> const& extents);

  using operation = std::function<void(std::vector<tensor_view> const& operands)>;
  /// Every operand, every dimension with at least two elements, every stride of boundary_strides.
  void check(operation const& run) const;

 private:
  struct operand {
    std::string name;
    test_tensor tensor;  // outputs: their type and extents
    bool is_output;
  };
  [[nodiscard]] std::vector<test_tensor> fresh_outputs() const;
  [[nodiscard]] std::vector<tensor_view> views(std::vector<test_tensor> const& outputs) const;
  void check_spread(operation const& run, std::vector<test_tensor> const& expected,
                    std::size_t which, int dimension, index_t stride) const;

  std::vector<operand> operands_;
};

/// L - 1, L and L + 1 for L = 2^31 and 2^32 elements and for as many bytes, in elements of `type`;
/// packed types step by whole bytes.
[[nodiscard]] std::vector<index_t> boundary_strides(dtype type);

}  // namespace moe64::test
