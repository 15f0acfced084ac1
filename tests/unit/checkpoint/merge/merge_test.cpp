// Base + adapter in every dialect against sums in f64 that share nothing with the library but the
// reading of checkpoints.

#include "moe64/merge.hpp"

#include "matrices.hpp"
#include "support/adapter_builder.hpp"
#include "support/error_matcher.hpp"
#include "support/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

namespace moe64::test {
namespace {

using checkpoint::key_schema;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;
constexpr index_t experts = case_extents::experts;
constexpr projection_kind projections[] = {projection_kind::gate, projection_kind::up,
                                           projection_kind::down};

/// Half a unit in the last place of a bf16 next to the number.
double half_unit(double number) {
  int exponent = 0;
  static_cast<void>(std::frexp(number, &exponent));
  return std::ldexp(1.0, std::max(exponent, -125) - 9);
}

class merge_dialects : public ::testing::TestWithParam<dialect_case> {
 protected:
  merge_dialects() {
    checkpoint_builder const builder = GetParam().build();
    write_checkpoint(base_, builder, plausible_tensors(builder), 2);
    reader_.emplace(base_.path().string());
    make_adapter();
    made_.write(adapter_);
  }

  [[nodiscard]] bool is_named_stack() const {
    return GetParam().schema == key_schema::moe_stack ||
           GetParam().schema == key_schema::block_sparse_moe_stack;
  }
  [[nodiscard]] bool is_swapped() const {
    return reader_->internals().resolved.config.is_one_of("llama4");
  }

  void make_adapter() {
    if (GetParam().schema == key_schema::moe_stack) {
      for (char const* const part : {"gate_proj", "up_proj"}) {
        made_.add(std::string("model.layers.0.moe.") + part, 4 * experts, hidden, inter);
      }
      made_.add("model.layers.0.moe.down_proj", 4 * experts, inter, hidden);
    } else if (GetParam().schema == key_schema::block_sparse_moe_stack) {
      made_.add("model.layers.0.block_sparse_moe.input_linear", 4 * experts, hidden, 2 * inter);
      made_.add("model.layers.0.block_sparse_moe.output_linear", 4 * experts, inter, hidden);
    } else if (is_swapped()) {
      made_.add("model.layers.0.mlp.experts.base_layer", 4 * experts, 2 * inter, hidden);
      made_.add("model.layers.0.mlp.experts", 4 * experts, hidden, inter);
      made_.members["target_parameters"] = R"(["experts.gate_up_proj", "experts.down_proj"])";
    } else {
      bool const gated = checkpoint::is_gated(GetParam().schema);
      made_.add_experts("model.layers.0.mlp.experts", experts, hidden, inter, gated);
    }
  }

  /// What the adapter adds to (row, col) of an expert's matrix.
  [[nodiscard]] double delta(projection_kind projection, index_t expert, index_t row,
                             index_t col) const {
    bool const down = projection == projection_kind::down;
    index_t const part = projection == projection_kind::up ? 1 : 0;
    std::string path = "model.layers.0.mlp.experts";
    index_t o = down ? row : part * inter + row;
    if (GetParam().schema == key_schema::moe_stack) {
      path = down ? "model.layers.0.moe.down_proj" : "model.layers.0.moe.gate_proj";
      if (part == 1) path = "model.layers.0.moe.up_proj";
      o = row;
    } else if (GetParam().schema == key_schema::block_sparse_moe_stack) {
      path = "model.layers.0.block_sparse_moe.";
      path += down ? "output_linear" : "input_linear";
    } else {
      if (!down) path += ".base_layer";
      if (!checkpoint::is_gated(GetParam().schema) && !down) o = row;
      bool const turns = reader_->internals().resolved.config.is_type("gpt_oss");
      if (turns && !down) o = 2 * row + part;
    }
    return is_swapped() ? made_.delta(path, col, o, expert, experts)
                        : made_.delta(path, o, col, expert, experts);
  }

  merge_report merge_to(convert_target to) {
    merge_options options;
    options.to = to;
    options.shard_bytes = 400'000;
    cpu_pool pool(3);
    return merge(*reader_, adapter_.path().string(), out_.file("out"), options, cpu_stream(&pool));
  }

  /// compare(got, want, base, largest of the matrix) for every number.
  template <class Compare>
  void for_each_number(Compare const& compare) {
    checkpoint_reader const result(out_.file("out"));
    for (projection_kind const projection : projections) {
      if (!checkpoint::is_gated(GetParam().schema) && projection == projection_kind::gate) continue;
      for (index_t expert = 0; expert < experts; ++expert) {
        read_matrix const before = expert_matrix(*reader_, 0, projection, expert);
        read_matrix const after = expert_matrix(result, 0, projection, expert);
        ASSERT_EQ(after.rows, before.rows);
        ASSERT_EQ(after.cols, before.cols);
        double largest = 0;
        std::vector<double> wanted;  // of every third column, another one in each row
        std::size_t next = 0;
        for (index_t row = 0; row < before.rows; ++row) {
          for (index_t col = row % 3; col < before.cols; col += 3) {
            wanted.push_back(static_cast<double>(before(row, col)) +
                             delta(projection, expert, row, col));
            largest = std::max(largest, std::fabs(wanted.back()));
          }
        }
        for (index_t row = 0; row < before.rows; ++row) {
          for (index_t col = row % 3; col < before.cols; col += 3) {
            double const want = wanted[next++];
            ASSERT_TRUE(compare(static_cast<double>(after(row, col)), want, largest))
                << name(projection) << " of expert " << expert << " at " << row << ", " << col
                << ": " << after(row, col) << " instead of " << want;
          }
        }
      }
    }
  }

  temp_folder base_;
  temp_folder adapter_;
  temp_folder out_;
  adapter_builder made_;
  std::optional<checkpoint_reader> reader_;
};

TEST_P(merge_dialects, bf16_is_within_half_a_unit_of_the_f64_result) {
  if (GetParam().schema == key_schema::mlp_stack_w13) {
    EXPECT_MOE64_ERROR(merge_to(convert_target::bf16), errc::unsupported, "not known");
    EXPECT_FALSE(out_.has("out"));
    return;
  }
  merge_report const report = merge_to(convert_target::bf16);
  EXPECT_TRUE(report.clean());
  EXPECT_EQ(report.modules, static_cast<index_t>(report.merged.size()));
  EXPECT_TRUE(report.warnings.empty());
  for_each_number([](double got, double want, double) {
    return std::fabs(got - want) <= half_unit(want) * (1 + 1e-9);
  });
}

TEST_P(merge_dialects, the_own_format_is_kept_or_refused) {
  if (GetParam().schema == key_schema::mlp_stack_w13) return;
  try {
    static_cast<void>(merge_to(convert_target::same));
  } catch (error const& refused) {
    EXPECT_EQ(refused.code(), errc::unsupported) << refused.what();
    EXPECT_THAT(refused.what(), HasSubstr("cannot be quantised again"));
    EXPECT_FALSE(out_.has("out"));
    return;
  }
  EXPECT_EQ(read_tensors(out_.file("out")).size(), read_tensors(base_.path().string()).size());
  bool const four_bits = GetParam().values != checkpoint::value_codec::e4m3 &&
                         GetParam().values != checkpoint::value_codec::plain;
  for_each_number([&](double got, double want, double largest) {
    double const step = four_bits ? largest / 5 : largest / 400;
    return std::fabs(got - want) <= 0.08 * std::fabs(want) + step;
  });
}

TEST_P(merge_dialects, fp8_block_is_what_dialects_state_or_refused) {
  if (GetParam().schema == key_schema::mlp_stack_w13) return;
  try {
    static_cast<void>(merge_to(convert_target::fp8_block));
  } catch (error const& refused) {
    EXPECT_EQ(refused.code(), errc::unsupported) << refused.what();
    EXPECT_FALSE(out_.has("out"));
    return;
  }
  for_each_number([](double got, double want, double largest) {
    return std::fabs(got - want) <= 0.07 * std::fabs(want) + largest / 200;
  });
}

/// Layers of multi-token prediction have no adapters.
std::vector<dialect_case> cases_of_backbones() {
  std::vector<dialect_case> cases;
  for (dialect_case const& c : dialect_cases()) {
    if (c.schema != key_schema::mtp_mlp_proj) cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    all, merge_dialects, ::testing::ValuesIn(cases_of_backbones()), [](auto const& given) {
      std::string id = given.param.id;
      std::replace_if(
          id.begin(), id.end(),
          [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return id + "_" + std::to_string(given.index);
    });

/// A model of one layer with attention, a shared expert and two routed experts in fp8 blocks.
class merge_modules : public ::testing::Test {
 protected:
  merge_modules() {
    builder_.config(case_config(R"("model_type": "qwen3_moe", "torch_dtype": "bfloat16",
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
      "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn.q_proj"]})",
                                1, hidden, inter, 2));
    for (index_t expert = 0; expert < 2; ++expert) {
      std::string const module = "model.layers.0.mlp.experts." + std::to_string(expert) + ".";
      add_fp8(module + "gate_proj", inter, hidden);
      add_fp8(module + "up_proj", inter, hidden);
      add_fp8(module + "down_proj", hidden, inter);
    }
    add_fp8("model.layers.0.self_attn.o_proj", hidden, hidden);
    add_fp8("model.layers.0.mlp.shared_experts.up_proj", inter, hidden);
    builder_.add("model.layers.0.self_attn.q_proj.weight", file_dtype::bf16, {hidden, hidden});
    builder_.add("lm_head.weight", file_dtype::f32, {50, hidden});
    tensor_map tensors = plausible_tensors(builder_);
    random_source const draw(11);
    for (index_t i = 0; i < hidden * hidden; ++i) {
      std::uint16_t const number = to_bf16(static_cast<float>(draw.uniform(i)));
      std::memcpy(tensors.at("model.layers.0.self_attn.q_proj.weight").bytes.data() + 2 * i,
                  &number, 2);
    }
    for (index_t i = 0; i < 50 * hidden; ++i) {
      auto const number = static_cast<float>(draw.uniform(-1 - i));
      std::memcpy(tensors.at("lm_head.weight").bytes.data() + 4 * i, &number, 4);
    }
    write_checkpoint(base_, builder_, tensors, 1);
    reader_.emplace(base_.path().string());
  }

  void add_fp8(std::string const& module, index_t rows, index_t cols) {
    builder_.add(module + ".weight", file_dtype::f8_e4m3, {rows, cols});
    builder_.add(module + ".weight_scale_inv", file_dtype::f32,
                 {ceil_div(rows, 128), ceil_div(cols, 128)});
  }

  merge_report merge_to(convert_target to, std::string const& out = "out") {
    made_.write(adapter_);
    merge_options options;
    options.to = to;
    options.layout = layout_;
    return merge(*reader_, adapter_.path().string(), out_.file(out), options, cpu_stream());
  }

  checkpoint_builder builder_;
  temp_folder base_;
  temp_folder adapter_;
  temp_folder out_;
  adapter_builder made_;
  adapter_layout layout_ = adapter_layout::as_stated;
  std::optional<checkpoint_reader> reader_;
};

constexpr char const* experts_path = "model.layers.0.mlp.experts";

TEST_F(merge_modules, plain_matrices_keep_their_types) {
  made_.add("model.layers.0.self_attn.q_proj", 4, hidden, hidden, 0.25, file_dtype::bf16);
  made_.add("lm_head", 4, hidden, 50, 0.25, file_dtype::f16);
  for (convert_target const to :
       {convert_target::bf16, convert_target::fp8_block, convert_target::same}) {
    std::string const out(name(to));
    merge_report const report = merge_to(to, out);
    EXPECT_EQ(report.modules, 2);
    tensor_map const before = read_tensors(base_.path().string());
    tensor_map const after = read_tensors(out_.file(out));
    for (auto const& [path, rows] :
         {std::pair{std::string("model.layers.0.self_attn.q_proj"), hidden},
          {std::string("lm_head"), index_t{50}}}) {
      tensor_bytes const& was = before.at(path + ".weight");
      tensor_bytes const& is = after.at(path + ".weight");
      ASSERT_EQ(is.type, was.type);
      for (index_t i = 0; i < rows * hidden; ++i) {
        double const want =
            static_cast<double>(stored_number(was, i)) + made_.delta(path, i / hidden, i % hidden);
        double const allowed =
            is.type == file_dtype::f32 ? std::fabs(want) * 0x1p-24 : half_unit(want);
        ASSERT_LE(std::fabs(static_cast<double>(stored_number(is, i)) - want),
                  allowed * (1 + 1e-9));
      }
    }
  }
}

TEST_F(merge_modules, same_changes_nothing_but_what_the_adapter_is_for) {
  made_.add("model.layers.0.self_attn.o_proj", 4, hidden, hidden);
  merge_report const report = merge_to(convert_target::same);
  ASSERT_EQ(report.merged.size(), 1U);
  EXPECT_EQ(report.merged[0].tensor, "model.layers.0.self_attn.o_proj.weight");
  tensor_map const before = read_tensors(base_.path().string());
  tensor_map const after = read_tensors(out_.file("out"));
  ASSERT_EQ(before.size(), after.size());
  for (auto const& [tensor, was] : before) {
    bool const changed = tensor.starts_with("model.layers.0.self_attn.o_proj");
    EXPECT_EQ(after.at(tensor).bytes == was.bytes, !changed) << tensor;
  }
}

TEST_F(merge_modules, single_experts_and_shared_experts_are_modules) {
  made_.add("model.layers.0.mlp.experts.1.up_proj", 4, hidden, inter);
  made_.add("model.layers.0.mlp.shared_experts.up_proj", 4, hidden, inter);
  merge_report const report = merge_to(convert_target::bf16);
  EXPECT_EQ(report.modules, 2);
  checkpoint_reader const result(out_.file("out"));
  for (index_t expert = 0; expert < 2; ++expert) {
    read_matrix const before = expert_matrix(*reader_, 0, projection_kind::up, expert);
    read_matrix const after = expert_matrix(result, 0, projection_kind::up, expert);
    for (index_t i = 0; i < inter * hidden; i += 7) {
      double want = static_cast<double>(before(i / hidden, i % hidden));
      if (expert == 1)
        want += made_.delta("model.layers.0.mlp.experts.1.up_proj", i / hidden, i % hidden);
      ASSERT_LE(std::fabs(static_cast<double>(after(i / hidden, i % hidden)) - want),
                half_unit(want) * (1 + 1e-9));
    }
  }
}

TEST_F(merge_modules, patterns_give_ranks_and_alphas) {
  made_.add("model.layers.0.self_attn.o_proj", 2, hidden, hidden);
  made_.add("model.layers.0.self_attn.q_proj", 4, hidden, hidden);
  made_.members["rank_pattern"] = R"({"o_proj": 2})";
  made_.members["alpha_pattern"] = R"({"layers\\.[0-9]+\\.self_attn\\.o_proj": 5, "o_proj": 7})";
  made_.members["use_rslora"] = "true";
  merge_to(convert_target::bf16);
  tensor_map const before = read_tensors(base_.path().string());
  tensor_map const after = read_tensors(out_.file("out"));
  std::string const path = "model.layers.0.self_attn.q_proj";
  double const scaling = 6 / std::sqrt(4.0);
  for (index_t i = 0; i < hidden * hidden; i += 3) {
    double const want = static_cast<double>(stored_number(before.at(path + ".weight"), i)) +
                        made_.delta(path, i / hidden, i % hidden, 0, 1, scaling);
    ASSERT_LE(std::fabs(static_cast<double>(stored_number(after.at(path + ".weight"), i)) - want),
              half_unit(want) * (1 + 1e-9));
  }
  auto const& state = reader_->internals();
  std::string const other = "model.layers.0.self_attn.o_proj";
  for (checkpoint::dense_entry const& dense : state.resolved.dense) {
    if (dense.module != other) continue;
    read_matrix const base = read_stored(
        state.files, matrices_of(dense.format, dense.values, dense.scales, dense.global), 0, false);
    for (index_t i = 0; i < hidden * hidden; i += 3) {
      double const want = static_cast<double>(base(i / hidden, i % hidden)) +
                          made_.delta(other, i / hidden, i % hidden, 0, 1, 5 / std::sqrt(2.0));
      ASSERT_LE(
          std::fabs(static_cast<double>(stored_number(after.at(other + ".weight"), i)) - want),
          half_unit(want) * (1 + 1e-9));
    }
  }
}

TEST_F(merge_modules, the_stated_layout_of_b_decides) {
  made_.add_experts(experts_path, 2, hidden, inter);
  auto const up_of = [&](std::string const& out) {
    checkpoint_reader const result(out_.file(out));
    return expert_matrix(result, 0, projection_kind::up, 1);
  };
  auto const expect = [&](std::string const& out, bool grouped) {
    read_matrix const base = expert_matrix(*reader_, 0, projection_kind::up, 1);
    read_matrix const after = up_of(out);
    for (index_t i = 0; i < inter * hidden; i += 5) {
      double const want = static_cast<double>(base(i / hidden, i % hidden)) +
                          made_.delta(std::string(experts_path) + ".base_layer", inter + i / hidden,
                                      i % hidden, 1, 2, 1.5, grouped);
      ASSERT_LE(std::fabs(static_cast<double>(after(i / hidden, i % hidden)) - want),
                half_unit(want) * (1 + 1e-9));
    }
  };
  merge_to(convert_target::bf16, "peft");
  expect("peft", false);
  made_.members["lora_B_layout"] = "\"grouped_by_expert\"";
  merge_to(convert_target::bf16, "grouped");
  expect("grouped", true);
  made_.members.erase("lora_B_layout");
  made_.members["auto_mapping"] = R"({"unsloth_fixed": true})";  // qwen3_moe: before stamps
  merge_to(convert_target::bf16, "unstamped");
  expect("unstamped", true);
  layout_ = adapter_layout::peft;
  merge_to(convert_target::bf16, "told");
  expect("told", false);
  made_.members["lora_B_layout"] = "\"grouped_by_expert\"";
  EXPECT_MOE64_ERROR(merge_to(convert_target::bf16, "none"), errc::invalid_argument, "rank_major",
                     "grouped_by_expert");
  made_.members["unsloth_fused_expert_lora"] = R"({"lora_B_layout": "rank_major"})";
  EXPECT_MOE64_ERROR(merge_to(convert_target::bf16, "none"), errc::malformed_file, "contradicts");
  EXPECT_FALSE(out_.has("none"));
}

TEST_F(merge_modules, a_change_that_rounding_swallows_is_a_warning) {
  made_.add("model.layers.0.self_attn.o_proj", 4, hidden, hidden, 1e-5);
  merge_report const lost = merge_to(convert_target::same, "small");
  ASSERT_EQ(lost.merged.size(), 1U);
  EXPECT_GT(lost.merged[0].error, 1);
  EXPECT_FALSE(lost.merged[0].survives());
  EXPECT_THAT(lost.warnings, Contains(HasSubstr("o_proj")));
  EXPECT_TRUE(lost.clean());
  made_.add("model.layers.0.self_attn.o_proj", 4, hidden, hidden, 2);
  merge_report const kept = merge_to(convert_target::same, "large");
  EXPECT_NEAR(kept.merged[0].kept, 1.0, 0.02);
  EXPECT_LT(kept.merged[0].error, 0.1);
  EXPECT_TRUE(kept.merged[0].survives());
  EXPECT_TRUE(kept.warnings.empty());
}

TEST_F(merge_modules, the_report_is_what_the_definitions_say) {
  std::string const path = "model.layers.0.self_attn.q_proj";
  made_.add(path, 4, hidden, hidden, 0.02);
  merge_report const report = merge_to(convert_target::bf16);
  tensor_bytes const before = read_tensors(base_.path().string()).at(path + ".weight");
  tensor_bytes const after = read_tensors(out_.file("out")).at(path + ".weight");
  double along = 0;
  double size = 0;
  double error = 0;
  for (index_t i = 0; i < hidden * hidden; ++i) {
    double const w = static_cast<double>(stored_number(before, i));
    double const m = static_cast<double>(stored_number(after, i));
    double const d = made_.delta(path, i / hidden, i % hidden);
    along += (m - w) * d;
    size += d * d;
    error += (m - w - d) * (m - w - d);
  }
  merged_tensor const& merged = report.merged.at(0);
  EXPECT_NEAR(merged.delta, std::sqrt(size), 1e-6 * merged.delta);
  EXPECT_NEAR(merged.kept, along / size, 1e-6);
  EXPECT_NEAR(merged.error, std::sqrt(error / size), 1e-5);
}

TEST_F(merge_modules, threads_and_memory_change_no_byte) {
  made_.add_experts(experts_path, 2, hidden, inter);
  made_.add("model.layers.0.self_attn.q_proj", 4, hidden, hidden);
  made_.write(adapter_);
  std::vector<std::string> texts;
  for (index_t const memory : {index_t{512} << 20, index_t{5} << 20}) {
    for (index_t const threads : {1, 3}) {
      merge_options options;
      options.to = convert_target::fp8_block;
      options.memory_bytes = memory;
      cpu_pool pool(threads);
      std::string const out = "out" + std::to_string(texts.size());
      merge(*reader_, adapter_.path().string(), out_.file(out), options, cpu_stream(&pool));
      texts.push_back(out_.read(out + "/model.safetensors"));
      EXPECT_TRUE(texts.back() == texts.front());
    }
  }
}

}  // namespace
}  // namespace moe64::test
