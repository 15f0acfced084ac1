// What `auto` chooses is what runs: with the bits and in the memory of the mode that it names. The
// CPU never chooses w8a8, a GPU with FP8 tensor cores does, and so does the emulation.
#include "support/layer_fixture.hpp"
#include "support/layer_implementations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moe64 {
namespace {

using test::layer_case;
using test::layer_memory;
using test::target;
using testing::HasSubstr;
using testing::StartsWith;

/// FP8 in blocks whose checkpoint states dynamic quantisation of activations.
layer_case dynamic_fp8() {
  layer_case c;
  c.hidden = 256;
  c.inter = 128;
  c.weight = weight_format::e4m3;
  c.scale = granularity::block(128, 128);
  c.io = dtype::bf16;
  c.scheme = activation_scheme::dynamic;
  c.route(9, 3);
  return c;
}

layer_case in_mode(layer_case c, compute_mode mode) {
  c.mode = mode;
  return c;
}

mode_choice choice_of(layer_case const& c) {
  layer_memory const memory(c);
  return resolve_mode(memory.desc, c.io, target().device);
}

index_t bytes_of(layer_case const& c, bool keeps_saved) {
  layer_memory const memory(c);
  return forward_bytes(memory.desc, memory.shape, keeps_saved, target().device);
}

/// Whether the first of the implementations, which is the one for codes where a device has one,
/// takes both products of the layer in w8a8.
bool multiplies_codes(layer_case const& c) {
  for (grouped_gemm_args const& args : layer_products(in_mode(c, compute_mode::w8a8))) {
    if (args.x.is_plain()) continue;  // of backward
    if (!explain(args, target()).front().answer) return false;
  }
  return true;
}

/// `auto` gives what the mode that it names gives, forward and backward, to the last bit and byte.
void expect_like_its_mode(layer_case const& c) {
  SCOPED_TRACE(to_string(c));
  compute_mode const mode = choice_of(c).mode;
  layer_case const named = in_mode(c, mode);
  EXPECT_EQ(test::run(c).difference(test::run(named)), "");
  for (bool const keeps : {false, true}) EXPECT_EQ(bytes_of(c, keeps), bytes_of(named, keeps));
}

TEST(layer_mode_auto, fp8_with_dynamic_activations_is_w8a8_where_codes_are_multiplied) {
  std::vector<layer_case> cases(6, dynamic_fp8());
  cases[1].scale = granularity::row();
  cases[2].scale = granularity::tensor();
  cases[3].io = dtype::f16;
  cases[4].weight_on = weight_placement::input;
  cases[5].act.kind = activation::relu2;
  cases[5].bias = true;
  for (layer_case const& c : cases) {
    mode_choice const choice = choice_of(c);
    if (test::on_cuda && multiplies_codes(c)) {
      EXPECT_EQ(choice.mode, compute_mode::w8a8) << to_string(c);
      EXPECT_THAT(choice.reason, HasSubstr("states dynamic quantisation"));
    } else {
      EXPECT_EQ(choice.mode, compute_mode::w8a16) << to_string(c);
      EXPECT_THAT(choice.reason, StartsWith("gate_up: "));
    }
    if (!test::on_cuda) {
      EXPECT_EQ(choice.reason, "gate_up: cpu has no FP8 GEMM in hardware");
    }
    expect_like_its_mode(c);
  }
}

TEST(layer_mode_auto, is_w8a16_where_one_product_is_not_of_codes) {
  std::vector<layer_case> cases(5, dynamic_fp8());
  cases[0].lora_gate_up = 4;
  cases[1].lora_down = 4;
  cases[2].io = dtype::f32;
  cases[3].hidden = 200;
  cases[4].inter = 72;
  for (layer_case const& c : cases) {
    bool const in_down = test::on_cuda && (c.lora_down > 0 || c.inter == 72);
    mode_choice const choice = choice_of(c);
    EXPECT_EQ(choice.mode, compute_mode::w8a16) << to_string(c);
    if (!test::on_cuda || multiplies_codes(dynamic_fp8())) {
      EXPECT_THAT(choice.reason, StartsWith(in_down ? "down: " : "gate_up: ")) << to_string(c);
    }
    expect_like_its_mode(c);
  }
}

TEST(layer_mode_auto, is_no_matter_of_tokens) {
  layer_case c = dynamic_fp8();
  mode_choice const one = choice_of(c);
  for (index_t const tokens : {0, 1, 40, 300}) {
    c.route(tokens, 3);
    EXPECT_EQ(choice_of(c).mode, one.mode);
    EXPECT_EQ(choice_of(c).reason, one.reason);
    expect_like_its_mode(c);
  }
}

/// Backward begins with what forward saved, whatever mode it ran in; a mode that is asked for is
/// not that of auto, and the gradients show it.
TEST(layer_mode_auto, a_mode_that_is_asked_for_is_another_where_auto_is_w8a8) {
  layer_case const c = dynamic_fp8();
  bool const same = choice_of(c).mode == compute_mode::w8a16;
  std::string const difference =
      test::run(c).difference(test::run(in_mode(c, compute_mode::w8a16)));
  EXPECT_EQ(difference.empty(), same) << difference;
}

}  // namespace
}  // namespace moe64
