#include "support/spread_call.hpp"

#include "support/huge_memory.hpp"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace moe64::test {

std::vector<index_t> boundary_strides(dtype type) {
  index_t const step = bits(type) == 4 ? 2 : 1;
  std::set<index_t> strides;
  for (index_t const limit : {index_t{1} << 31, index_t{1} << 32}) {
    for (index_t const elements : {limit, limit * 8 / bits(type)}) {
      for (index_t const stride : {elements - step, elements, elements + step}) {
        strides.insert(stride);
      }
    }
  }
  return {strides.begin(), strides.end()};
}

spread_call& spread_call::input(std::string name, test_tensor tensor) {
  operands_.push_back({std::move(name), std::move(tensor), false});
  return *this;
}

spread_call& spread_call::output(std::string name, dtype type,
                                 std::vector<index_t> const& extents) {
  operands_.push_back({std::move(name), test_tensor(type, extents), true});
  return *this;
}

std::vector<test_tensor> spread_call::fresh_outputs() const {
  std::vector<test_tensor> outputs;
  for (operand const& o : operands_) {
    tensor_view const& v = o.tensor.view();
    if (o.is_output) {
      outputs.emplace_back(v.type, std::vector<index_t>(v.extent, v.extent + v.rank));
    }
  }
  return outputs;
}

std::vector<tensor_view> spread_call::views(std::vector<test_tensor> const& outputs) const {
  std::vector<tensor_view> result;
  std::size_t next = 0;
  for (operand const& o : operands_) {
    result.push_back(o.is_output ? outputs[next++].view() : o.tensor.view());
  }
  return result;
}

void spread_call::check(operation const& run) const {
  std::vector<test_tensor> const expected = fresh_outputs();
  std::vector<test_tensor> const untouched = fresh_outputs();
  run(views(expected));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NE(expected[i].codes(), untouched[i].codes()) << "output " << i << " was not written";
  }
  for (std::size_t which = 0; which < operands_.size(); ++which) {
    tensor_view const& v = operands_[which].tensor.view();
    for (int dimension = 0; dimension < v.rank; ++dimension) {
      bool const packed = bits(v.type) == 4 && dimension == v.rank - 1;
      if (v.extent[dimension] < 2 || packed) continue;
      for (index_t const stride : boundary_strides(v.type)) {
        check_spread(run, expected, which, dimension, stride);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

void spread_call::check_spread(operation const& run, std::vector<test_tensor> const& expected,
                               std::size_t which, int dimension, index_t stride) const {
  SCOPED_TRACE(operands_[which].name + ", dimension " + std::to_string(dimension) + ", stride " +
               std::to_string(stride));
  std::vector<test_tensor> const outputs = fresh_outputs();
  std::size_t next = 0;
  std::size_t spread_output = outputs.size();
  for (std::size_t i = 0; i <= which; ++i) {
    if (!operands_[i].is_output) continue;
    if (i == which) spread_output = next;
    ++next;
  }
  bool const is_output = operands_[which].is_output;
  spread_tensor const spread(is_output ? outputs[spread_output] : operands_[which].tensor,
                             dimension, stride);
  std::vector<tensor_view> operands = views(outputs);
  operands[which] = spread.view();
  run(operands);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (i == spread_output) {
      EXPECT_EQ(spread.difference(expected[i]), "");
    } else {
      EXPECT_EQ(outputs[i].codes(), expected[i].codes()) << "output " << i;
    }
  }
}

}  // namespace moe64::test
