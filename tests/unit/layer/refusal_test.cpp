// What the layer refuses, and how modes are chosen. Whatever is refused leaves every output as it
// was.
#include "support/error_matcher.hpp"
#include "support/layer_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::layer_result;
using test::target;
using testing::HasSubstr;

layer_case small(weight_format weight = weight_format::f32) {
  layer_case c;
  c.hidden = 6;
  c.inter = 4;
  c.weight = weight;
  if (is_quantized(value_type(weight))) c.scale = granularity::row();
  if (weight == weight_format::int4) c.scale = granularity::group(4);
  c.route(4, 3, 0.0);
  return c;
}

/// Every output that a layer_memory has now is the same at the end of the scope.
class untouched {
 public:
  explicit untouched(layer_memory const& memory)
      : outputs_(memory.outputs()), before_(memory.result()) {}
  ~untouched() {
    for (auto const& [name, view] : outputs_) {
      EXPECT_EQ(test::bits_of(view), before_.bits.at(name)) << name;
    }
  }
  untouched(untouched const&) = delete;
  untouched& operator=(untouched const&) = delete;

 private:
  std::vector<std::pair<std::string, tensor_view>> outputs_;
  layer_result before_;
};

// ---- modes --------------------------------------------------------------------------------------

mode_choice mode_of(layer_case const& c) {
  layer_memory const memory(c);
  return resolve_mode(memory.desc, c.io, target().device);
}

TEST(layer_mode, automatic_says_why) {
  auto choice = mode_of(small(weight_format::bf16));
  EXPECT_EQ(choice.mode, compute_mode::native);
  EXPECT_THAT(choice.reason, HasSubstr("bf16"));

  choice = mode_of(small(weight_format::e4m3));
  EXPECT_EQ(choice.mode, compute_mode::w8a16);
  EXPECT_THAT(choice.reason, HasSubstr("states no quantisation"));

  layer_case dynamic = small(weight_format::e4m3);
  dynamic.scheme = activation_scheme::dynamic;
  choice = mode_of(dynamic);  // no CPU multiplies 8-bit floats
  EXPECT_EQ(choice.mode, compute_mode::w8a16);
  EXPECT_FALSE(choice.reason.empty());
  EXPECT_EQ(choice.reason.find("states no quantisation"), std::string::npos);

  dynamic = small(weight_format::int4);
  dynamic.scheme = activation_scheme::dynamic;
  choice = mode_of(dynamic);
  EXPECT_EQ(choice.mode, compute_mode::w8a16);
  EXPECT_THAT(choice.reason, HasSubstr("int4"));
}

TEST(layer_mode, a_mode_that_is_asked_for_is_taken_or_refused) {
  struct row {
    weight_format weight;
    compute_mode mode;
    bool runs;
  };
  std::vector<row> const table = {
      {weight_format::f32, compute_mode::native, true},
      {weight_format::f32, compute_mode::w8a16, false},
      {weight_format::bf16, compute_mode::w8a8, false},
      {weight_format::e4m3, compute_mode::w8a16, true},
      {weight_format::e4m3, compute_mode::w8a8, true},
      {weight_format::e4m3, compute_mode::native, false},
      {weight_format::e5m2, compute_mode::w8a8, true},
      {weight_format::int8, compute_mode::w8a8, true},
      {weight_format::int4, compute_mode::w8a16, true},
      {weight_format::int4, compute_mode::w8a8, false},
      {weight_format::int4, compute_mode::native, false},
  };
  for (row const& given : table) {
    layer_case c = small(given.weight);
    std::string const type(name(value_type(given.weight)));
    SCOPED_TRACE(type + " in mode " + std::string(name(given.mode)));
    layer_memory memory(c);
    untouched const same(memory);
    memory.desc.mode = given.mode;
    if (given.runs) {
      auto const choice = resolve_mode(memory.desc, c.io, target().device);
      EXPECT_EQ(choice.mode, given.mode);
      EXPECT_EQ(choice.reason, "asked for");
      EXPECT_GT(forward_bytes(memory.desc, memory.shape, true, target().device), 0);
    } else {
      EXPECT_MOE64_ERROR(resolve_mode(memory.desc, c.io, target().device), errc::unsupported, type,
                         name(given.mode));
      EXPECT_MOE64_ERROR(memory.run_forward(), errc::unsupported, type, name(given.mode));
    }
  }
}

TEST(layer_mode, does_not_depend_on_the_tokens) {
  for (index_t const tokens : {1, 100}) {
    layer_case c = small(weight_format::e4m3);
    c.route(tokens, 3);
    EXPECT_EQ(mode_of(c).mode, compute_mode::w8a16);
  }
}

TEST(layer_mode, activation_granularity_follows_that_of_the_weights) {
  EXPECT_EQ(activation_granularity(granularity::tensor()), granularity::row());
  EXPECT_EQ(activation_granularity(granularity::row()), granularity::row());
  EXPECT_EQ(activation_granularity(granularity::block(128, 128)), granularity::group(128));
  EXPECT_EQ(activation_granularity(granularity::block(3, 5)), granularity::group(128));
  EXPECT_EQ(activation_granularity(granularity::group(32)), granularity::group(128));
}

// ---- gradients that do not exist ----------------------------------------------------------------

/// A tensor of the shape that a gradient would have.
test::test_tensor gradient(index_t rows, index_t cols) { return {dtype::f32, {3, rows, cols}}; }

TEST(layer_refusal, gradient_of_quantised_weights) {
  for (weight_format const weight :
       {weight_format::e4m3, weight_format::e5m2, weight_format::int8, weight_format::int4}) {
    layer_memory memory(small(weight));
    memory.run_forward();
    untouched const same(memory);
    std::string const type(name(value_type(weight)));
    test::test_tensor const d_up = gradient(4, 6), d_down = gradient(6, 4);
    for (std::size_t const part : {std::size_t{0}, std::size_t{1}}) {
      memory.backward.gradients.gate_up.weights[part] = d_up;
      EXPECT_MOE64_ERROR(memory.run_backward(), errc::unsupported, "[backward]", "gate_up", type,
                         "frozen");
      memory.backward.gradients.gate_up.weights[part] = {};
    }
    memory.backward.gradients.down.weights[0] = d_down;
    EXPECT_MOE64_ERROR(memory.run_backward(), errc::unsupported, "[backward]", "down", type,
                       "frozen");
    for (test::test_tensor const* d : {&d_up, &d_down}) {
      for (double const number : d->numbers()) EXPECT_TRUE(number != number);  // still NaN
    }
  }
}

TEST(layer_refusal, gradient_of_lora_that_is_not_there) {
  for (bool const on_down : {false, true}) {
    layer_case c = small();
    (on_down ? c.lora_gate_up : c.lora_down) = 2;  // only the other one has it
    layer_memory memory(c);
    memory.run_forward();
    untouched const same(memory);
    auto& asked = on_down ? memory.backward.gradients.down : memory.backward.gradients.gate_up;
    std::string const where = on_down ? "down" : "gate_up";
    test::test_tensor const d = gradient(2, on_down ? 4 : 6);
    asked.lora_a = d;
    EXPECT_MOE64_ERROR(memory.run_backward(), errc::invalid_argument, "[backward]", where, "lora");
    asked.lora_a = {};
    test::test_tensor const d_b = gradient(on_down ? 6 : 4, 2);
    asked.lora_b[0] = d_b;
    EXPECT_MOE64_ERROR(memory.run_backward(), errc::invalid_argument, "[backward]", where, "lora");
  }
}

TEST(layer_refusal, gradient_of_a_bias_or_part_that_is_not_there) {
  layer_case c = small();
  layer_memory memory(c);
  memory.run_forward();
  untouched const same(memory);
  test::test_tensor const d_bias(dtype::f32, {3, 4});
  memory.backward.gradients.gate_up.bias[1] = d_bias;
  EXPECT_MOE64_ERROR(memory.run_backward(), errc::invalid_argument, "gate_up.bias", "absent");
  memory.backward.gradients.gate_up.bias[1] = {};
  test::test_tensor const d_second = gradient(6, 4);
  memory.backward.gradients.down.weights[1] = d_second;
  EXPECT_MOE64_ERROR(memory.run_backward(), errc::invalid_argument, "down", "part 1");
}

TEST(layer_refusal, gradients_of_the_wrong_shape_or_type) {
  layer_case c = small();
  c.bias = true;
  c.lora_gate_up = 2;
  layer_memory memory(c);
  memory.run_forward();
  layer_gradients const right = memory.backward.gradients;
  untouched const same(memory);
  auto const refused = [&](errc code, std::string const& part) {
    EXPECT_MOE64_ERROR(memory.run_backward(), code, "[backward]", part);
    memory.backward.gradients = right;
  };
  auto& g = memory.backward.gradients;
  g.x.extent[1] -= 1;
  refused(errc::shape_mismatch, "gradient of x");
  g.x.type = dtype::bf16;
  refused(errc::dtype_mismatch, "gradient of x");
  g.weights.extent[0] -= 1;
  refused(errc::shape_mismatch, "gradient of weights");
  g.gate_up.weights[1].extent[1] -= 1;
  refused(errc::shape_mismatch, "gate_up");
  g.down.bias[0].extent[1] -= 1;
  refused(errc::shape_mismatch, "down.bias");
  g.gate_up.lora_a.extent[1] += 1;
  refused(errc::shape_mismatch, "gate_up.lora.a");
  g.gate_up.lora_b[0].extent[2] -= 1;
  refused(errc::shape_mismatch, "gate_up.lora.b");
  g.x = memory.forward.x;
  refused(errc::invalid_argument, "overlaps");
  g.gate_up.weights[1] = g.gate_up.weights[0];
  refused(errc::invalid_argument, "overlaps");
  g.gate_up.bias[1] = g.gate_up.bias[0];
  refused(errc::invalid_argument, "overlaps");
  g.gate_up.lora_b[1] = g.gate_up.lora_b[0];
  refused(errc::invalid_argument, "overlaps");
}

// ---- operands of forward ------------------------------------------------------------------------

TEST(layer_refusal, ids_that_are_no_expert) {
  for (index_t const id : {index_t{-2}, index_t{4}, index_t{1} << 40}) {
    layer_case c = small();
    c.id(2, 1) = id;
    layer_memory memory(c);
    if constexpr (test::on_cuda) {
      memory.run_forward();  // as if the slot were a sentinel, and counted
      auto const status =
          test::bits_of(saved_plan(memory.desc, memory.shape, memory.forward.saved).status);
      EXPECT_EQ(status[plan_status::invalid], 1U);
      EXPECT_EQ(status[plan_status::first_invalid], 5U);
      layer_result const found = memory.result();
      c.id(2, 1) = -1;
      layer_memory const skipped(c);
      skipped.run_forward();
      EXPECT_EQ(found.difference(skipped.result()), "");
      continue;
    }
    untouched const same(memory);
    EXPECT_MOE64_ERROR(memory.run_forward(), errc::invalid_expert, std::to_string(id), "5");
  }
}

TEST(layer_refusal, operands_that_do_not_fit) {
  layer_memory memory(small());
  forward_args const right = memory.forward;
  layer_desc const layer = memory.desc;
  untouched const same(memory);
  auto const refused = [&](errc code, std::string const& part) {
    EXPECT_MOE64_ERROR(memory.run_forward(), code, part);
    memory.forward = right;
    memory.desc = layer;
  };
  memory.forward.x.extent[1] = 5;
  refused(errc::shape_mismatch, "x");
  memory.forward.y.extent[0] = 3;
  refused(errc::shape_mismatch, "y");
  memory.forward.y.type = dtype::bf16;
  refused(errc::dtype_mismatch, "y");
  memory.forward.expert_ids.extent[0] = 3;
  refused(errc::shape_mismatch, "expert_ids");
  memory.forward.expert_ids.type = dtype::f32;
  refused(errc::dtype_mismatch, "expert_ids");
  memory.forward.weights.extent[1] = 1;
  refused(errc::shape_mismatch, "weights");
  memory.forward.y = memory.forward.x;
  refused(errc::invalid_argument, "overlaps");
  memory.forward.capacity = -2;
  refused(errc::invalid_argument, "capacity");
  memory.forward.x = {};
  refused(errc::invalid_argument, "x is absent");
  memory.forward.x.device = device::cuda(0);
  refused(errc::device_mismatch, "x");
  memory.desc.first_expert = 1;
  refused(errc::invalid_argument, "experts_total");
  memory.desc.experts_total = 2;
  refused(errc::invalid_argument, "experts_total (2)");
  memory.desc.activation.kind = activation::relu2;  // gate_up has two parts
  refused(errc::shape_mismatch, "relu2");
  memory.desc.down.weights = {};
  refused(errc::invalid_argument, "down");
  memory.desc.implementation = "nonexistent";
  refused(errc::unsupported, "nonexistent");
}

}  // namespace
}  // namespace moe64
