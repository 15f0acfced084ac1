#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "moe64/checkpoint.hpp"
#include "moe64/cpu.hpp"
#include "support/buffer.hpp"
#include "support/checkpoint_builder.hpp"
#include "support/checkpoint_files.hpp"
#include "support/error_matcher.hpp"
#include "support/independent_decoder.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

using part = independent_decoder::part;

constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;
constexpr index_t experts = case_extents::experts;

layer_request request_of(dialect_case const& dialect) {
  bool const mtp = dialect.schema == checkpoint::key_schema::mtp_mlp_proj;
  return {0, mtp, 0, -1};
}

quantized_view const& view_of(layer_desc const& layer, part which) {
  if (which == part::down) return layer.down.weights.part(0);
  return layer.gate_up.weights.part(which == part::up ? 1 : 0);
}

/// The numbers of one expert, by the library.
std::vector<float> dequantized(quantized_view const& from) {
  std::vector<float> numbers(static_cast<std::size_t>(from.experts() * from.rows() * from.cols()));
  dequantize_args args;
  args.q = from;
  args.out = tensor_view::contiguous(numbers.data(), dtype::f32,
                                     {from.experts(), from.rows(), from.cols()});
  dequantize(args, cpu_stream());
  return numbers;
}

/// The first position where `got` from `begin` on is not `wanted` bit for bit; -1 when none.
index_t first_difference(std::vector<float> const& got, std::size_t begin,
                         std::vector<float> const& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    float const number = got.at(begin + i);
    bool const same =
        std::bit_cast<std::uint32_t>(number) == std::bit_cast<std::uint32_t>(wanted[i]) ||
        (std::isnan(number) && std::isnan(wanted[i]));
    if (!same) return static_cast<index_t>(i);
  }
  return -1;
}

void expect_decoded(layer_desc const& layer, independent_decoder const& decoder, index_t first) {
  for (part const which : {part::gate, part::up, part::down}) {
    quantized_view const& view = view_of(layer, which);
    auto const got = dequantized(view);
    auto const matrix = static_cast<std::size_t>(view.rows() * view.cols());
    ASSERT_EQ(view.rows() * view.cols(), hidden * inter);
    for (index_t e = 0; e < view.experts(); ++e) {
      auto const wanted = decoder.matrix(which, first + e);
      ASSERT_EQ(wanted.size(), matrix);
      EXPECT_EQ(first_difference(got, static_cast<std::size_t>(e) * matrix, wanted), -1)
          << "part " << static_cast<int>(which) << " of expert " << first + e;
    }
  }
}

class every_loading : public testing::TestWithParam<dialect_case> {
 protected:
  void SetUp() override {
    write_checkpoint(folder_, GetParam().build());  // scales are not where their weights are
  }
  [[nodiscard]] checkpoint_reader open() const {
    return checkpoint_reader(folder_.path().string());
  }
  temp_folder folder_;
};

TEST_P(every_loading, equals_an_independent_decoding_bit_for_bit) {
  auto const reader = open();
  layer_request const request = request_of(GetParam());
  test_tensor const memory = make_workspace(layer_bytes(reader, request));
  cpu_pool pool(8);
  layer_desc const layer = load_layer(reader, request, memory.as_workspace(), cpu_stream(&pool));
  EXPECT_EQ(layer.experts(), experts);
  EXPECT_EQ(layer.experts_total, 0);
  independent_decoder const decoder(folder_.path(), GetParam().id);
  expect_decoded(layer, decoder, 0);
}

TEST_P(every_loading, takes_a_part_of_the_experts) {
  auto const reader = open();
  layer_request request = request_of(GetParam());
  index_t const all = layer_bytes(reader, request);
  request.first_expert = 1;
  request.experts = 2;
  index_t const bytes = layer_bytes(reader, request);
  EXPECT_LT(bytes, all);
  test_tensor const memory = make_workspace(bytes);
  layer_desc const layer = load_layer(reader, request, memory.as_workspace(), cpu_stream());
  EXPECT_EQ(layer.experts(), 2);
  EXPECT_EQ(layer.first_expert, 1);
  EXPECT_EQ(layer.experts_total, experts);
  independent_decoder const decoder(folder_.path(), GetParam().id);
  expect_decoded(layer, decoder, 1);
}

TEST_P(every_loading, needs_what_it_asks_for_to_the_byte) {
  auto const reader = open();
  layer_request const request = request_of(GetParam());
  index_t const bytes = layer_bytes(reader, request);
  std::vector<std::uint8_t> last;
  for (std::uint8_t const before : {std::uint8_t{0xa5}, std::uint8_t{0x5a}}) {
    test_tensor const memory = make_workspace(bytes);  // what lies behind must stay as it is
    std::memset(memory.view().data, before, static_cast<std::size_t>(bytes));
    (void)load_layer(reader, request, memory.as_workspace(), cpu_stream());
    last.push_back(static_cast<std::uint8_t const*>(memory.view().data)[bytes - 1]);
    workspace less = memory.as_workspace();
    --less.bytes;
    EXPECT_MOE64_ERROR(load_layer(reader, request, less, cpu_stream()), errc::workspace_too_small,
                       "[load_layer] memory");
  }
  EXPECT_EQ(last[0], last[1]);  // the last byte is read from a file
}

TEST_P(every_loading, is_the_same_from_one_shard_and_mapped) {
  auto const reader = open();
  layer_request const request = request_of(GetParam());
  index_t const bytes = layer_bytes(reader, request);
  test_tensor const first = make_workspace(bytes);
  (void)load_layer(reader, request, first.as_workspace(), cpu_stream());
  temp_folder one;
  write_checkpoint(
      one, GetParam().build(), [](std::string const&) { return 0; }, 1);
  checkpoint_options options;
  options.mapped = true;
  checkpoint_reader const mapped(one.path().string(), options);
  ASSERT_EQ(layer_bytes(mapped, request), bytes);
  test_tensor const second = make_workspace(bytes);
  (void)load_layer(mapped, request, second.as_workspace(), cpu_stream());
  EXPECT_EQ(first.bytes(), second.bytes());
}

TEST_P(every_loading, refuses_a_layer_without_a_scale) {
  checkpoint_builder builder = GetParam().build();
  auto const whole = builder.resolve();
  std::string const scale(whole.layers.front().down.experts.back().scales->name);
  std::string const values(whole.layers.front().down.experts.back().values->name);
  builder.remove(scale);
  temp_folder folder;
  write_checkpoint(folder, builder);
  checkpoint_reader const reader(folder.path().string());
  EXPECT_MOE64_ERROR(layer_bytes(reader, request_of(GetParam())), errc::missing_scale,
                     "[load_layer]", "layer 0", values.c_str(), "has no scale");
  auto const described = describe(reader);
  ASSERT_EQ(described.layer_list.size(), 1U);
  EXPECT_FALSE(described.layer_list.front().sound);
  EXPECT_THAT(described.layer_list.front().problem, testing::HasSubstr(values));
  EXPECT_EQ(described.matched + 1, described.weights_found);
}

INSTANTIATE_TEST_SUITE_P(table, every_loading, testing::ValuesIn(dialect_cases()),
                         [](auto const& entry) { return entry.param.id; });

// ---- what a layer is beside its weights ---------------------------------------------------------

/// A loaded layer with everything it looks at.
struct loaded {
  explicit loaded(std::string const& id) {
    for (dialect_case const& candidate : dialect_cases()) {
      if (candidate.id == id) dialect = candidate;
    }
    write_checkpoint(folder, dialect.build());
    checkpoint_reader const reader(folder.path().string());
    memory = make_workspace(layer_bytes(reader, request_of(dialect)));
    layer = load_layer(reader, request_of(dialect), memory.as_workspace(), cpu_stream());
  }
  dialect_case dialect;
  temp_folder folder;
  test_tensor memory;
  layer_desc layer;
};

TEST(load_layer, has_the_biases_of_interleaved_parts) {
  loaded const gptoss("D14");
  independent_decoder const decoder(gptoss.folder.path(), "D14");
  for (auto const& [which, bias] : {std::pair{part::gate, gptoss.layer.gate_up.bias[0]},
                                    std::pair{part::up, gptoss.layer.gate_up.bias[1]},
                                    std::pair{part::down, gptoss.layer.down.bias[0]}}) {
    ASSERT_EQ(bias.rank, 2);
    ASSERT_EQ(bias.extent[0], experts);
    ASSERT_EQ(bias.extent[1], which == part::down ? hidden : inter);
    ASSERT_EQ(bias.type, dtype::bf16);
    for (index_t e = 0; e < experts; ++e) {
      for (index_t row = 0; row < bias.extent[1]; ++row) {
        auto const* const codes = static_cast<std::uint16_t const*>(bias.data);
        std::uint32_t const code = codes[e * bias.stride[0] + row * bias.stride[1]];
        ASSERT_EQ(code << 16, std::bit_cast<std::uint32_t>(decoder.bias(which, e, row)));
      }
    }
  }
  EXPECT_FALSE(loaded("D1").layer.down.bias[0].present());
}

TEST(load_layer, takes_activation_scheme_and_weight_placement_from_the_config) {
  loaded const deepseek("D1");
  EXPECT_EQ(deepseek.layer.activation.kind, activation::silu_glu);
  EXPECT_EQ(deepseek.layer.scheme, activation_scheme::dynamic);
  EXPECT_EQ(deepseek.layer.weight_on, weight_placement::output);
  loaded const static_scales("D18");
  EXPECT_EQ(static_scales.layer.scheme, activation_scheme::unstated);
  loaded const gptoss("D14");
  EXPECT_EQ(gptoss.layer.activation.kind, activation::gptoss_glu);
  EXPECT_EQ(gptoss.layer.activation.limit, 7.0F);
  EXPECT_EQ(loaded("D3").layer.activation.kind, activation::clamped_silu_glu);
  EXPECT_EQ(loaded("D16").layer.weight_on, weight_placement::input);
}

TEST(load_layer, looks_twice_at_a_fused_tensor_that_is_there_once) {
  loaded const granite("D28");
  auto const& gate = granite.layer.gate_up.weights.part(0).values();
  auto const& up = granite.layer.gate_up.weights.part(1).values();
  EXPECT_EQ(static_cast<std::byte*>(up.data) - static_cast<std::byte*>(gate.data), inter * hidden);
  EXPECT_EQ(gate.stride[0], 2 * inter * hidden);
  index_t const values = 3 * experts * inter * hidden;
  index_t const scales = experts * 2 * (2 * inter + hidden);
  EXPECT_EQ(granite.memory.as_workspace().bytes, values + scales);
}

}  // namespace
}  // namespace moe64::test
