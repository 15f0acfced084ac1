// Gradients of weights past the budget of `moe64 verify`: compared in parts, still with teeth.
#include "cases/neurons.hpp"
#include "cases/problem_case.hpp"
#include "moe64/cpu.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace moe64::cases {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr double small_budget = 2e5;
constexpr char const* shape =
    "tokens=64 hidden=64 inter=96 experts=2 top_k=2 io=f32 backward=1 weight=";

output_error const& named(verification const& found, std::string const& name) {
  for (output_error const& output : found.outputs) {
    if (output.output == name) return output;
  }
  throw std::out_of_range(name);
}

TEST(neuron_sample, has_the_last_one_and_an_odd_distance) {
  neuron_sample const some(1000, 7.5);
  EXPECT_EQ(some.count(), 7);
  EXPECT_THAT(some.indices(), Contains(999));
  EXPECT_EQ((some.indices()[1] - some.indices()[0]) % 2, 1);
  EXPECT_GE(some.indices()[0], 0);
  EXPECT_EQ(neuron_sample(1000, 0.1).count(), 2);
  EXPECT_EQ(neuron_sample(1000, 1000.0).count(), 1000);
  EXPECT_EQ(neuron_sample(1, 0.1).count(), 1);
}

TEST(neuron_sample, parts_of_gradients_are_within_their_bounds) {
  for (char const* const rest :
       {"f32", "f32 bias=1", "f32 act=relu2", "f32 weight_on=input", "e4m3 lora=3 bias=1",
        "e4m3 lora=3 act=silu layout=interleaved", "f32 layout=interleaved bias=1"}) {
    problem p = parse_problem(shape + std::string(rest));
    if (!is_gated(p.act.kind)) p.layout = gate_up_layout::concatenated;
    problem_case c(p);
    run(c, cpu_stream());
    auto const found = c.verify(cpu_stream(), small_budget);
    EXPECT_TRUE(found.ok()) << rest << ": " << found.message();
    auto const& last = named(found, p.lora > 0 ? "d_down_lora_a" : "d_down");
    EXPECT_EQ(last.compared, 2) << rest;
    EXPECT_LT(last.neurons, 96) << rest;
    EXPECT_GT(last.worst, 0.0) << rest;
  }
}

TEST(neuron_sample, a_wrong_number_of_a_sampled_neuron_is_found) {
  for (char const* const name : {"d_gate", "d_up", "d_down"}) {
    problem_case c(parse_problem(std::string(shape) + "f32"));
    run(c, cpu_stream());
    tensor_view const d = c.output(name);
    auto* const numbers = static_cast<float*>(d.data);
    index_t const last = d.extent[1] * d.extent[2] - 1;  // of the last neuron in each of them
    numbers[d.stride[0] + last] += 100.0F;
    auto const found = c.verify(cpu_stream(), small_budget);
    EXPECT_FALSE(found.ok()) << name;
    EXPECT_THAT(found.message(), HasSubstr(std::string(name) + " is off"));
  }
}

TEST(neuron_sample, what_the_budget_does_not_reach_is_counted_as_not_compared) {
  problem_case c(parse_problem(std::string(shape) + "e4m3 lora=3"));
  run(c, cpu_stream());
  auto const found = c.verify(cpu_stream(), small_budget);
  for (char const* const name : {"d_gate_up_lora_a", "d_down_lora_b"}) {
    EXPECT_EQ(named(found, name).compared, 0);
    EXPECT_EQ(named(found, name).total, 2);
  }
  EXPECT_EQ(named(c.verify(cpu_stream()), "d_down_lora_b").compared, 2);
}

TEST(neuron_sample, the_gradient_operation_is_cut_too) {
  problem_case c(parse_problem(
      "op=grouped_gemm_wgrad tokens=64 hidden=64 inter=96 experts=2 top_k=2 io=f32 weight=f32 "
      "bias=1"));
  run(c, cpu_stream());
  auto const good = c.verify(cpu_stream(), small_budget);
  EXPECT_TRUE(good.ok()) << good.message();
  EXPECT_LT(named(good, "d_up").neurons, 96);
  tensor_view const bias = c.output("d_up_bias");
  static_cast<float*>(bias.data)[bias.stride[0] + 95] += 100.0F;
  EXPECT_FALSE(c.verify(cpu_stream(), small_budget).ok());
}

}  // namespace
}  // namespace moe64::cases
