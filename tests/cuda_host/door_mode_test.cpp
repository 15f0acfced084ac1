// What `auto` says on CUDA, with the real conditions of the kernels on the mock: every reason, and
// that forward, the size query and the kernels that are launched agree.
#include "backend.hpp"
#include "cases/problem_case.hpp"
#include "cuda_host/machine.hpp"
#include "moe64/layer.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace moe64::test {
namespace {

using testing::HasSubstr;

constexpr moe64::device where = device::cuda(5);
alignas(64) unsigned char anywhere[128];

tensor_view view(dtype type, std::initializer_list<index_t> extents) {
  return tensor_view::contiguous(anywhere, type, extents, where);
}

struct matrix {
  dtype type = dtype::e4m3;
  granularity layout = granularity::block(128, 128);
  dtype scale_type = dtype::f32;
};

constexpr index_t experts = 3;

quantized_view make(matrix const& m, index_t rows, index_t cols) {
  tensor_view const values = view(m.type, {experts, rows, cols});
  if (m.layout.kind == scale_kind::none) return quantized_view::plain(values);
  return quantized_view::scaled(
      values, view(m.scale_type, {experts, m.layout.grid_rows(rows), m.layout.grid_cols(cols)}),
      m.layout);
}

weight_stack gate_up_of(matrix const& m, index_t hidden, index_t inter) {
  return weight_stack::gate_up(make(m, inter, hidden), make(m, inter, hidden));
}

layer_desc dynamic(matrix const& m = {}, index_t hidden = 256, index_t inter = 128) {
  layer_desc layer;
  layer.gate_up.weights = gate_up_of(m, hidden, inter);
  layer.down.weights = weight_stack::single(make(m, hidden, inter));
  layer.scheme = activation_scheme::dynamic;
  return layer;
}

lora_adapter adapter(weight_stack const& beside) {
  constexpr index_t rank = 8;
  auto const b = quantized_view::plain(view(dtype::bf16, {experts, beside.part_rows(), rank}));
  return {weight_stack::single(
              quantized_view::plain(view(dtype::bf16, {experts, rank, beside.cols()}))),
          beside.parts() == 2 ? weight_stack::gate_up(b, b) : weight_stack::single(b)};
}

/// The same weights with values that are changed.
weight_stack with_values(weight_stack weights, std::function<void(tensor_view&)> const& change) {
  weights.for_each_part([&](quantized_view& part) {
    part.for_each_array([&](char const* name, tensor_view& array) {
      if (std::string(name) == "values") change(array);
    });
  });
  return weights;
}

class door_mode : public on_mock {
 protected:
  /// Builds without the headers of CUTLASS refuse with one reason, whatever the layer.
  bool const has_kernels = !backend_of(where).layer.empty();

  void expect_w8a8(layer_desc const& layer, dtype io = dtype::bf16) {
    mode_choice const choice = resolve_mode(layer, io, where);
    EXPECT_EQ(choice.mode, has_kernels ? compute_mode::w8a8 : compute_mode::w8a16) << choice.reason;
    EXPECT_THAT(choice.reason, HasSubstr(has_kernels ? "states dynamic quantisation"
                                                     : "gate_up: this build has no kernels"));
  }
  void expect_w8a16(layer_desc const& layer, std::string const& reason, dtype io = dtype::bf16) {
    mode_choice const choice = resolve_mode(layer, io, where);
    EXPECT_EQ(choice.mode, compute_mode::w8a16) << choice.reason;
    EXPECT_THAT(choice.reason, HasSubstr(has_kernels ? reason : "this build has no kernels"));
  }
};

TEST_F(door_mode, w8a8_for_all_that_sm90_w8a8_takes) {
  expect_w8a8(dynamic());
  expect_w8a8(dynamic(), dtype::f16);
  for (granularity const layout : {granularity::row(), granularity::tensor(),
                                   granularity::block(256, 128), granularity::block(128, 512)}) {
    expect_w8a8(dynamic({.layout = layout}));
  }
  for (dtype const type : {dtype::bf16, dtype::e8m0}) expect_w8a8(dynamic({.scale_type = type}));
  expect_w8a8(dynamic({}, 2880, 2896));  // no multiple of 128
  expect_w8a8(dynamic({.layout = granularity::row()}, 16, 16));

  layer_desc layer = dynamic();
  layer.weight_on = weight_placement::input;
  layer.experts_total = 9;
  layer.first_expert = 2;
  layer.gate_up.bias = {view(dtype::f32, {experts, 128}), view(dtype::f32, {experts, 128})};
  layer.down.bias = {view(dtype::bf16, {experts, 256}), {}};
  expect_w8a8(layer);
  layer = dynamic();
  layer.activation.kind = activation::relu2;
  layer.gate_up.weights = weight_stack::single(make({}, 128, 256));
  expect_w8a8(layer);
  layer = dynamic();
  layer.implementation = "sm90_w8a8";
  expect_w8a8(layer);
  layer = dynamic();  // gate and up row by row
  layer.gate_up.weights =
      with_values(layer.gate_up.weights, [](tensor_view& values) { values.stride[1] *= 2; });
  expect_w8a8(layer);
}

TEST_F(door_mode, w8a16_for_forms_that_sm90_w8a8_refuses) {
  expect_w8a16(dynamic(), "gate_up: y [1, 256] f32 cuda:5 is not of contiguous rows in 16 bits",
               dtype::f32);
  expect_w8a16(dynamic({.type = dtype::e5m2}), "gate_up: x is e4m3 and weights are e5m2");
  expect_w8a16(dynamic({.type = dtype::int8, .layout = granularity::row()}),
               "gate_up: x is int8 and weights are int8");
  expect_w8a16(dynamic({.scale_type = dtype::f16}), "gate_up: scales are f16");
  for (granularity const layout :
       {granularity::block(64, 128), granularity::block(128, 64), granularity::block(1, 128),
        granularity::group(128), granularity::block(192, 128)}) {
    expect_w8a16(dynamic({.layout = layout}, 512, 256),
                 "gate_up: weights have scale " + to_string(layout));
  }
  expect_w8a16(dynamic({}, 200, 128), "gate_up: x [1, 1, 200] e4m3 cuda:5 does not begin");
  expect_w8a16(dynamic({}, 256, 72), "down: x [1, 1, 72] e4m3 cuda:5 does not begin");
  expect_w8a16(dynamic({}, 0, 128), "gate_up: there is nothing to multiply");
  expect_w8a16(dynamic({}, 256, 0), "gate_up: there is nothing to multiply");
}

TEST_F(door_mode, more_experts_at_places_than_kernels_count) {
  // Places are few, experts are many: replicas. Kernels count both with ints.
  auto const replicas = [](index_t count) {
    tensor_view const table = view(dtype::int64, {count});
    auto const part = [&](index_t rows, index_t cols) {
      return quantized_view::scaled(view(dtype::e4m3, {1, rows, cols}),
                                    view(dtype::f32, {1, rows / 128, cols / 128}),
                                    granularity::block(128, 128), {}, {table, table});
    };
    layer_desc layer = dynamic();
    layer.gate_up.weights = weight_stack::gate_up(part(128, 256), part(128, 256));
    layer.down.weights = weight_stack::single(part(256, 128));
    return layer;
  };
  constexpr index_t most = (index_t{1} << 31) - 1 - 1024;
  expect_w8a8(replicas(most));
  expect_w8a16(replicas(most + 1),
               "gate_up: weights have 2147482624 experts, more than 2147482623");
}

TEST_F(door_mode, each_projection_counts) {
  layer_desc layer = dynamic();
  layer.down.weights = weight_stack::single(make({.scale_type = dtype::f16}, 256, 128));
  expect_w8a16(layer, "down: scales are f16");
  for (index_t const bytes : {1, 8}) {
    layer = dynamic();
    layer.gate_up.weights = with_values(layer.gate_up.weights, [&](tensor_view& values) {
      values.data = static_cast<unsigned char*>(values.data) + bytes;
    });
    expect_w8a16(layer, "gate_up: weights [3, 128, 256] e4m3 cuda:5 does not begin");
  }
  layer = dynamic();  // [experts, in, out]
  layer.down.weights = with_values(layer.down.weights, [](tensor_view& values) {
    values.stride[1] = 1;
    values.stride[2] = values.extent[1];
  });
  expect_w8a16(layer, "down: weights [3, 256, 128]");
  layer = dynamic();
  layer.gate_up.lora = adapter(layer.gate_up.weights);
  expect_w8a16(layer, "gate_up: there is a low-rank term");
  layer = dynamic();
  layer.down.lora = adapter(layer.down.weights);
  expect_w8a16(layer, "down: there is a low-rank term");
}

TEST_F(door_mode, an_implementation_that_is_forced_counts) {
  for (char const* const name : {"sm80_mma", "sm90_w8a16", "reference"}) {
    layer_desc layer = dynamic();
    layer.implementation = name;
    mode_choice const choice = resolve_mode(layer, dtype::bf16, where);
    EXPECT_EQ(choice.mode, compute_mode::w8a16);
    EXPECT_EQ(choice.reason,
              std::string("gate_up: implementation ") + name + " is asked for, not sm90_w8a8");
  }
}

TEST_F(door_mode, the_device_counts) {
  machine.make_capability(8);
  expect_w8a16(dynamic(), "gate_up: cuda:5 has compute capability 8.0, not 9.0");
  machine.make_capability(10);
  expect_w8a16(dynamic(), "gate_up: cuda:5 has compute capability 10.0, not 9.0");
  machine.make_capability(9);
  machine.fail(runtime_call::capability, launch_failure);
  expect_w8a16(dynamic(), "gate_up: cuda:5 does not tell its compute capability");
  EXPECT_EQ(machine.last_error(), 0);
  machine.reset();
  EXPECT_MOE64_ERROR(resolve_mode(dynamic(), dtype::bf16, device::cuda(20)), errc::unsupported,
                     "there is no cuda:20");
  EXPECT_EQ(resolve_mode(dynamic(), dtype::bf16, device::cpu()).reason,
            "gate_up: cpu has no FP8 GEMM in hardware");
}

TEST_F(door_mode, what_the_checkpoint_states_and_what_is_asked_for_come_first) {
  layer_desc layer = dynamic();
  layer.scheme = activation_scheme::unstated;
  EXPECT_EQ(resolve_mode(layer, dtype::bf16, where).reason,
            "the checkpoint states no quantisation of activations");
  for (compute_mode const mode : {compute_mode::w8a16, compute_mode::w8a8}) {
    layer = dynamic();
    layer.mode = mode;
    EXPECT_EQ(resolve_mode(layer, dtype::bf16, where).mode, mode);
    EXPECT_EQ(resolve_mode(layer, dtype::bf16, where).reason, "asked for");
  }
  layer = dynamic();
  layer.down.weights =
      weight_stack::single(make({.type = dtype::bf16, .layout = granularity::none()}, 256, 128));
  EXPECT_EQ(resolve_mode(layer, dtype::bf16, where).reason,
            "gate_up is e4m3, down is bf16: w8a8 needs e4m3, e5m2 or int8 weights");
  EXPECT_MOE64_ERROR(resolve_mode(dynamic(), dtype::e4m3, where), errc::dtype_mismatch,
                     "io is e4m3", "f32, bf16 or f16");
}

TEST_F(door_mode, the_size_query_is_of_the_mode_for_any_number_of_tokens) {
  auto const bytes = [](layer_desc layer, compute_mode mode, index_t tokens, bool keeps) {
    layer.mode = mode;
    return forward_bytes(layer, {tokens, 2, dtype::bf16}, keeps, where);
  };
  layer_desc const plain = dynamic();
  layer_desc lora = dynamic();
  lora.down.lora = adapter(lora.down.weights);
  compute_mode const chosen = has_kernels ? compute_mode::w8a8 : compute_mode::w8a16;
  for (index_t const tokens :
       {index_t{0}, index_t{1}, index_t{16}, index_t{17}, index_t{1} << 40}) {
    for (bool const keeps : {false, true}) {
      EXPECT_EQ(bytes(plain, compute_mode::automatic, tokens, keeps),
                bytes(plain, chosen, tokens, keeps));
      EXPECT_EQ(bytes(lora, compute_mode::automatic, tokens, keeps),
                bytes(lora, compute_mode::w8a16, tokens, keeps));
    }
  }
}

/// The kernels that a layer launches, and their grids.
std::vector<std::pair<void const*, unsigned>> launches_of(mock_cuda& machine,
                                                          std::string const& words) {
  cases::problem_case const c(parse_problem("hidden=256 experts=6 top_k=3 device=cuda:5 " + words));
  cases::queue const queue(where, nullptr);
  machine.reset();
  c.execute(queue.get());
  std::vector<std::pair<void const*, unsigned>> all;
  for (mock_cuda::launched const& launch : machine.launches()) {
    all.emplace_back(launch.config.function, launch.config.ctas);
  }
  machine.reset();
  return all;
}

TEST_F(door_mode, forward_launches_what_the_mode_launches) {
  std::string const chosen = has_kernels ? " mode=w8a8" : " mode=w8a16";
  for (std::string const words : {"tokens=4", "tokens=20", "tokens=900", "tokens=20 backward=1"}) {
    SCOPED_TRACE(words);
    std::string const usual = words + " inter=128";
    EXPECT_EQ(launches_of(machine, usual + " scheme=dynamic"),
              launches_of(machine, usual + chosen));
    for (std::string const more : {" inter=128 lora=8", " inter=128 io=f32", " inter=72"}) {
      EXPECT_EQ(launches_of(machine, words + more + " scheme=dynamic"),
                launches_of(machine, words + more + " mode=w8a16"));
    }
  }
}

/// forward asks once: whatever the device answers then, memory is checked for that mode.
TEST_F(door_mode, memory_is_checked_for_the_mode_that_runs) {
  if (!has_kernels) GTEST_SKIP() << "this build has no kernels of sm_90a";
  cases::problem_case const c(parse_problem(
      "tokens=64 hidden=128 inter=512 experts=6 top_k=3 device=cuda:5 scheme=dynamic"));
  cases::queue const queue(where, nullptr);
  machine.fail(runtime_call::capability, launch_failure);  // w8a16, which needs more here
  EXPECT_MOE64_ERROR(c.execute(queue.get()), errc::workspace_too_small, "scratch");
  EXPECT_TRUE(machine.launches().empty());
  c.execute(queue.get());
  EXPECT_FALSE(machine.launches().empty());
}

}  // namespace
}  // namespace moe64::test
