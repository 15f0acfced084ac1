// The random problems of the property, gradient and layer suites meet every implementation; what
// the portable ones compute does not depend on which of them it is; and quantised weights are read
// as if they had been dequantised before.
#include "cpu/runtime/features.hpp"
#include "moe64/explain.hpp"
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::layer_result;
using test::random_layer_case;
using test::target;
using test::test_tensor;

constexpr std::uint64_t problems = 120;
dtype const io_types[] = {dtype::f32, dtype::bf16, dtype::f16};

/// Whether this machine runs an implementation of grouped_gemm at all.
support machine_has(std::string const& name) {
  if constexpr (test::on_cuda) return support::yes();
  static std::map<std::string, support (*)()> const needs{{"amx_bf16", cpu::has_amx_bf16},
                                                          {"avx512_bf16", cpu::has_avx512_bf16},
                                                          {"avx512_vnni", cpu::has_avx512_vnni},
                                                          {"avx512", cpu::has_avx512},
                                                          {"avx2", cpu::has_avx2},
                                                          {"scalar", support::yes},
                                                          {"reference", support::yes}};
  auto const found = needs.find(name);
  if (found != needs.end()) return found->second();
  ADD_FAILURE() << "state what " << name << " needs";
  return support::yes();
}

TEST(implementations, each_that_the_machine_has_is_drawn_often) {
  std::map<std::string, int> forced, met;
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case const c = random_layer_case(seed);
    forced[c.implementation] += 1;
    std::map<std::string, int> here;
    for (grouped_gemm_args const& args : test::layer_products(c)) {
      auto const reports = explain(args, target());
      bool found = false;
      for (implementation_report const& report : reports) {
        bool const runs = !found && report.answer &&
                          (c.implementation.empty() || c.implementation == report.name);
        here[report.name] += runs ? 1 : 0;
        found = found || runs;
      }
      EXPECT_TRUE(found) << to_string(c);
    }
    for (auto const& [name, count] : here) met[name] += count > 0 ? 1 : 0;
  }
  EXPECT_GE(forced[""], 5);
  for (auto const& [name, count] : met) {
    bool const takes_a_layer = name != "avx512_vnni";  // only int8 by int8, not transposed
    // On sm_90a alone and not transposed, which a whole layer is: tests/cuda has its own of them.
    if (name.starts_with("sm90_")) continue;
    if (!machine_has(name)) continue;
    EXPECT_GE(count, takes_a_layer ? 5 : 2) << name;
    if (takes_a_layer) {
      EXPECT_GE(forced[name], 4) << name;
    }
  }
}

/// Odd widths, past one step of lanes and one tile, and experts from no row to many.
layer_case wide(std::uint64_t seed, dtype io) {
  layer_case c;
  c.seed = seed;
  c.hidden = 131;
  c.inter = 45;
  c.bias = true;
  c.lora_gate_up = 3;
  c.lora_down = 17;
  c.io = io;
  c.parameter_type = io;
  c.route(45, 4);
  for (index_t t = 0; t < 35; ++t) c.id(t, 0) = 2;
  return c;
}

// ---- the portable ones of the CPU ---------------------------------------------------------------

#ifndef MOE64_TEST_CUDA

std::vector<std::string> portable_of(layer_case const& c) {
  std::vector<std::string> names = test::implementations_of(c);
  std::erase_if(names, [](std::string const& name) {
    return name != "avx512" && name != "avx2" && name != "scalar";
  });
  return names;
}

void expect_one_result(layer_case c) {
  SCOPED_TRACE(to_string(c));
  std::vector<std::string> const names = portable_of(c);
  ASSERT_FALSE(names.empty());
  c.implementation = names[0];
  layer_memory memory(c);
  memory.run_forward();
  memory.run_backward();
  layer_result const first = memory.result();
  for (std::size_t i = 1; i < names.size(); ++i) {
    memory.desc.implementation = names[i];
    memory.poison_outputs();
    memory.run_forward();
    memory.run_backward();
    EXPECT_EQ(memory.result().difference(first), "") << names[i] << " is not " << names[0];
  }
}

TEST(implementations, every_width_gives_the_same_bits) {
  EXPECT_GE(portable_of(random_layer_case(1)).size(), cpu::has_avx2() ? 2U : 1U);
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    for (dtype const io : io_types) {
      layer_case c = random_layer_case(seed);
      c.io = io;
      expect_one_result(c);
    }
  }
}

TEST(implementations, every_width_gives_the_same_bits_in_wide_layers) {
  for (dtype const io : io_types) {
    layer_case c = wide(3, io);
    for (weight_format const plain :
         {weight_format::f32, weight_format::bf16, weight_format::f16}) {
      c.weight = plain;
      expect_one_result(c);
    }
    for (weight_format const bytes : {weight_format::e4m3, weight_format::int8}) {
      c.weight = bytes;
      for (granularity const scale : {granularity::row(), granularity::block(32, 64)}) {
        c.scale = scale;
        for (compute_mode const mode : {compute_mode::w8a16, compute_mode::w8a8}) {
          c.mode = mode;
          expect_one_result(c);
        }
      }
    }
    c.mode = compute_mode::automatic;
    c.weight = weight_format::mxfp4;
    c.scale = granularity::group(32);
    c.scale_type = dtype::e8m0;
    expect_one_result(c);
  }
}

TEST(implementations, every_width_gives_the_same_bits_in_long_sums) {
  for (dtype const io : io_types) {
    layer_case c = wide(4, io);
    c.hidden = 1312;
    c.inter = 544;
    c.route(4, 2);
    c.weight = weight_format::e4m3;
    c.scale = granularity::block(128, 128);
    for (compute_mode const mode : {compute_mode::w8a16, compute_mode::w8a8}) {
      c.mode = mode;
      expect_one_result(c);
    }
  }
}

#endif

// ---- dequantised before -------------------------------------------------------------------------

/// The stack as numbers of this type, in memory that `owner` keeps.
weight_stack dequantized(weight_stack const& stack, dtype type, std::deque<test_tensor>& owner) {
  quantized_view parts[2];
  for (int part = 0; part < stack.parts(); ++part) {
    tensor_view const out = owner.emplace_back(
        type, std::vector<index_t>{stack.experts(), stack.part_rows(), stack.cols()});
    dequantize({.q = stack.part(part), .out = out}, target());
    parts[part] = quantized_view::plain(out);
  }
  return stack.parts() == 2 ? weight_stack::gate_up(parts[0], parts[1])
                            : weight_stack::single(parts[0]);
}

void expect_the_bits_of_dequantized_weights(layer_case const& c) {
  SCOPED_TRACE(to_string(c));
  // On a GPU the best for codes need not be the best for numbers.
  if (test::on_cuda && c.implementation.empty()) return;
  layer_memory memory(c);
  memory.run_forward();
  memory.run_backward();
  layer_result const wanted = memory.result();
  std::deque<test_tensor> owner;
  memory.desc.gate_up.weights = dequantized(memory.desc.gate_up.weights, c.io, owner);
  memory.desc.down.weights = dequantized(memory.desc.down.weights, c.io, owner);
  memory.desc.mode = compute_mode::native;
  // It takes codes alone; numbers have its bits by another.
  bool const mixed = c.implementation == "sm90_w8a16" || c.implementation == "sm90_w4a16";
  if (mixed) memory.desc.implementation = "sm80_mma";
  memory.poison_outputs();
  memory.run_forward();
  memory.run_backward();
  EXPECT_EQ(memory.result().difference(wanted), "");
}

TEST(implementations, quantised_weights_give_the_bits_of_dequantised_ones) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= problems; ++seed) {
    layer_case c = random_layer_case(seed);
    if (!is_quantized(value_type(c.weight))) continue;
    c.mode = compute_mode::w8a16;
    test::for_each_implementation(c, expect_the_bits_of_dequantized_weights);
    ++compared;
  }
  EXPECT_GT(compared, 40);
  for (dtype const io : io_types) {
    layer_case c = wide(5, io);
    for (weight_format const weight :
         {weight_format::e4m3, weight_format::e5m2, weight_format::int8, weight_format::int4}) {
      c.weight = weight;
      for (granularity const scale : {granularity::row(), granularity::group(10)}) {
        c.scale = scale;
        test::for_each_implementation(c, expect_the_bits_of_dequantized_weights);
      }
    }
    c.weight = weight_format::mxfp4;
    c.scale = granularity::group(32);
    c.scale_type = dtype::e8m0;
    test::for_each_implementation(c, expect_the_bits_of_dequantized_weights);
  }
}

}  // namespace
}  // namespace moe64
