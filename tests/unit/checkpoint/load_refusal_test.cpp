#include "moe64/checkpoint.hpp"
#include "moe64/cpu.hpp"
#include "support/buffer.hpp"
#include "support/checkpoint_builder.hpp"
#include "support/checkpoint_files.hpp"
#include "support/error_matcher.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace moe64::test {
namespace {

constexpr index_t hidden = case_extents::hidden;
constexpr index_t inter = case_extents::inter;
constexpr index_t experts = case_extents::experts;

std::string const declared =
    R"("model_type": "qwen3_moe", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.1.mlp.experts"]})";

/// Layers 0 to 2, of which the second is not quantised.
checkpoint_builder three_layers(std::string const& members = declared) {
  checkpoint_builder builder;
  builder.config(case_config(members, 3));
  for (index_t layer = 0; layer < 3; ++layer) {
    expert_tensors tensors;
    tensors.prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    tensors.value_type = layer == 1 ? file_dtype::bf16 : file_dtype::f8_e4m3;
    if (layer != 1) {
      tensors.scales = ".weight_scale_inv";
      tensors.scale_shape = [](index_t rows, index_t cols) {
        return std::vector<index_t>{ceil_div(rows, 128), ceil_div(cols, 128)};
      };
    }
    add_experts(builder, tensors);
  }
  return builder;
}

layer_desc load(checkpoint_reader const& reader, layer_request const& request,
                progress_report const& progress = {}) {
  test_tensor const memory = make_workspace(layer_bytes(reader, request));
  return load_layer(reader, request, memory.as_workspace(), cpu_stream(), progress);
}

TEST(load_layer, takes_plain_layers_among_quantised_ones) {
  temp_folder folder;
  write_checkpoint(folder, three_layers());
  checkpoint_reader const reader(folder.path().string());
  EXPECT_TRUE(load(reader, {1}).down.weights.is_plain());
  EXPECT_EQ(load(reader, {0}).down.weights.type(), dtype::e4m3);
  EXPECT_EQ(layer_bytes(reader, {1}), 3 * experts * hidden * inter * 2);
  auto const described = describe(reader);
  EXPECT_EQ(described.errors, 0);
  EXPECT_THAT(described.dialects, testing::UnorderedElementsAre("D8", "plain"));
  ASSERT_EQ(described.layer_list.size(), 3U);
  EXPECT_EQ(described.layer_list[1].dialect, "plain");
  EXPECT_EQ(described.layer_list[1].gate.stored_values, "BF16");
  EXPECT_EQ(described.layer_list[1].gate.stored_scales, "");
}

TEST(load_layer, takes_the_sound_layers_of_a_broken_checkpoint) {
  checkpoint_builder builder = three_layers();
  std::string const module = "model.layers.2.mlp.experts.1.up_proj";
  builder.remove(module + ".weight_scale_inv");
  temp_folder folder;
  write_checkpoint(folder, builder);
  checkpoint_reader const reader(folder.path().string());
  EXPECT_NO_THROW(load(reader, {0}));
  EXPECT_NO_THROW(load(reader, {1}));
  EXPECT_MOE64_ERROR(load(reader, {2}), errc::missing_scale, "[load_layer] layer 2", module.c_str(),
                     "has no scale");
}

TEST(load_layer, has_a_reason_when_more_is_wrong_than_is_kept) {
  checkpoint_builder builder;
  builder.config(case_config(declared, 20));
  for (index_t layer = 0; layer < 20; ++layer) {  // 180 weights without a scale
    expert_tensors tensors;
    tensors.prefix = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    add_experts(builder, tensors);
  }
  temp_folder folder;
  write_checkpoint(
      folder, builder, [](std::string const&) { return 0; }, 1);
  checkpoint_reader const reader(folder.path().string());
  EXPECT_MOE64_ERROR(load(reader, {19}), errc::missing_scale, "layer 19", "180 errors",
                     "has no scale");
}

TEST(load_layer, names_the_layers_and_experts_that_there_are) {
  temp_folder folder;
  write_checkpoint(folder, three_layers());
  checkpoint_reader const reader(folder.path().string());
  EXPECT_MOE64_ERROR(load(reader, {3}), errc::invalid_argument, "no layer 3", "layers: 0 to 2",
                     "MTP layers: none");
  EXPECT_MOE64_ERROR(load(reader, {0, true}), errc::invalid_argument, "no MTP layer 0");
  EXPECT_MOE64_ERROR(load(reader, {-1}), errc::invalid_argument, "no layer -1");
  layer_request const bad[] = {{0, false, 3, -1}, {0, false, -1, 1}, {0, false, 1, 3},
                               {0, false, 0, 0},  {0, false, 0, -2}, {0, false, 1, INT64_MAX}};
  for (layer_request const& request : bad) {
    EXPECT_MOE64_ERROR(load(reader, request), errc::invalid_argument, "experts from",
                       "layer 0 has 3");
  }
}

TEST(load_layer, refuses_every_layer_of_a_config_that_cannot_be_trusted) {
  temp_folder folder;
  write_checkpoint(folder, three_layers(declared + R"(, "swiglu_limit": 7.0)"));
  checkpoint_reader const reader(folder.path().string());
  EXPECT_MOE64_ERROR(load(reader, {0}), errc::unsupported, "layer 0", "swiglu_limit");
  EXPECT_FALSE(describe(reader).activation.has_value());
}

TEST(load_layer, refuses_memory_and_streams_of_another_device) {
  temp_folder folder;
  write_checkpoint(folder, three_layers());
  checkpoint_reader const reader(folder.path().string());
  test_tensor const memory = make_workspace(layer_bytes(reader, {0}));
  workspace lent = memory.as_workspace();
  EXPECT_MOE64_ERROR(load_layer(reader, {0}, lent, {device::cuda(0), nullptr}),
                     errc::device_mismatch, "[load_layer]", "cuda:0");
  lent.device = device::cuda(0);
  EXPECT_MOE64_ERROR(load_layer(reader, {0}, lent, cpu_stream()), errc::device_mismatch,
                     "[load_layer] memory", "cuda:0");
  lent = memory.as_workspace();
  lent.data = static_cast<std::byte*>(lent.data) + 1;
  EXPECT_MOE64_ERROR(load_layer(reader, {0}, lent, cpu_stream()), errc::workspace_too_small,
                     "not aligned");
}

TEST(load_layer, refuses_a_checkpoint_with_a_dropped_shard) {
  temp_folder folder;
  write_checkpoint(folder, three_layers());
  std::filesystem::remove(folder.path() / shard_name(1));
  EXPECT_MOE64_ERROR(checkpoint_reader(folder.path().string()), errc::io_failure,
                     shard_name(1).c_str());
}

TEST(load_layer, notices_a_file_that_shrinks_or_changes_after_it_was_opened) {
  temp_folder folder;
  write_checkpoint(folder, three_layers());
  checkpoint_reader const reader(folder.path().string());
  EXPECT_NO_THROW(load(reader, {0}));
  auto const shard = folder.path() / shard_name(1);
  std::filesystem::last_write_time(
      shard, std::filesystem::last_write_time(shard) + std::chrono::seconds(5));
  EXPECT_MOE64_ERROR(load(reader, {0}), errc::io_failure, shard_name(1).c_str());
  EXPECT_NO_THROW(load(reader, {1}));  // all of it is in the other shard
  std::filesystem::resize_file(folder.path() / shard_name(0), 100'000);
  EXPECT_MOE64_ERROR(load(reader, {1}), errc::io_failure, shard_name(0).c_str());
}

TEST(load_layer, reports_every_byte_once_and_stops_when_the_report_throws) {
  temp_folder folder;
  write_checkpoint(folder, three_layers());
  checkpoint_reader const reader(folder.path().string());
  index_t done = -1;
  index_t total = 0;
  load(reader, {0}, [&](index_t now, index_t all) {
    EXPECT_GE(now, done);
    done = now;
    total = all;
  });
  EXPECT_EQ(done, total);
  EXPECT_EQ(total, describe(reader).layer_list.front().stored_bytes);
  EXPECT_MOE64_ERROR(
      load(reader, {0}, [](index_t, index_t) { throw error(errc::interrupted, "enough"); }),
      errc::interrupted, "enough");
  struct own_exception {};
  EXPECT_THROW(load(reader, {0}, [](index_t, index_t) { throw own_exception(); }), own_exception);
}

TEST(load_layer, compares_the_stated_shape_of_packed_weights) {
  checkpoint_builder builder;
  for (dialect_case const& dialect : dialect_cases()) {
    if (dialect.id == "D13") builder = dialect.build();
  }
  std::string const name = "model.layers.0.mlp.experts.2.up_proj.weight_shape";
  builder.add(name, file_dtype::i32, {2});  // random bytes
  temp_folder wrong;
  write_checkpoint(wrong, builder);
  EXPECT_MOE64_ERROR(load(checkpoint_reader(wrong.path().string()), {0}), errc::shape_mismatch,
                     name.c_str(), "but the weight is [192, 320]");
  EXPECT_NO_THROW(load(checkpoint_reader(wrong.path().string()), {0, false, 0, 2}));
  builder.add(name, file_dtype::i64, {0});
  temp_folder empty;
  write_checkpoint(empty, builder);
  EXPECT_NO_THROW(load(checkpoint_reader(empty.path().string()), {0}));
  builder.add(name, file_dtype::f32, {2});
  temp_folder other;
  write_checkpoint(other, builder);
  EXPECT_MOE64_ERROR(load(checkpoint_reader(other.path().string()), {0}), errc::malformed_file,
                     name.c_str(), "two integers");
}

TEST(load_layer, reads_tensors_of_many_pieces_on_many_threads) {
  constexpr index_t wide = 2048;
  constexpr index_t tall = 1536;
  checkpoint_builder builder;
  builder.config(case_config(R"("model_type": "qwen3_5_moe")", 1, wide, tall, 2));
  std::string const prefix = "model.layers.0.mlp.experts.";
  builder.add(prefix + "gate_up_proj", file_dtype::bf16, {2, 2 * tall, wide});  // 24 MiB
  builder.add(prefix + "down_proj", file_dtype::bf16, {2, wide, tall});
  temp_folder folder;
  write_checkpoint(
      folder, builder, [](std::string const&) { return 0; }, 1);
  checkpoint_reader const reader(folder.path().string());
  test_tensor const memory = make_workspace(layer_bytes(reader, {0}));
  cpu_pool pool(8);
  std::atomic<index_t> reports = 0;
  layer_desc const layer = load_layer(reader, {0}, memory.as_workspace(), cpu_stream(&pool),
                                      [&](index_t, index_t) { ++reports; });
  EXPECT_GE(reports, 2);
  auto const fused = builder.bytes_of(prefix + "gate_up_proj");
  auto const down = builder.bytes_of(prefix + "down_proj");
  EXPECT_EQ(std::memcmp(layer.gate_up.weights.part(0).values().data, fused.data(), fused.size()),
            0);
  EXPECT_EQ(std::memcmp(layer.down.weights.part(0).values().data, down.data(), down.size()), 0);
}

// ---- describe -----------------------------------------------------------------------------------

TEST(describe, counts_what_the_files_hold) {
  temp_folder folder;
  write_checkpoint(folder, three_layers());
  checkpoint_reader const reader(folder.path().string());
  auto const described = describe(reader);
  EXPECT_EQ(described.model_type, "qwen3_moe");
  EXPECT_EQ(described.quant_method, "fp8");
  EXPECT_THAT(described.quant_source, testing::HasSubstr("config.json"));
  EXPECT_EQ(described.hidden, hidden);
  EXPECT_EQ(described.top_k, 2);
  EXPECT_EQ(described.mtp_layers, -1);
  EXPECT_EQ(described.shards, 2);
  EXPECT_EQ(described.tensors, 3 * 9 + 2 * 9);
  EXPECT_EQ(described.weights_found, 18);
  EXPECT_EQ(described.scales_found, 18);
  EXPECT_EQ(described.matched, 18);
  index_t const matrix = hidden * inter;
  EXPECT_EQ(described.expert_parameters, 27 * matrix);
  ASSERT_EQ(described.types.size(), 3U);
  EXPECT_EQ(described.types[0].name, "F8_E4M3");
  EXPECT_EQ(described.types[0].bytes, 18 * matrix);
  EXPECT_EQ(described.types[1].name, "BF16");
  EXPECT_EQ(described.types[2].name, "F32");
  EXPECT_EQ(described.types[2].tensors, 18);
  EXPECT_EQ(described.tensor_bytes, described.expert_bytes);
  layer_description const& layer = described.layer_list[0];
  EXPECT_EQ(to_string(layer.gate.layout), "block:128x128");
  EXPECT_EQ(layer.gate.rows, inter);
  EXPECT_EQ(layer.down.rows, hidden);
  EXPECT_EQ(layer.loaded_bytes, layer_bytes(reader, {0}));
  EXPECT_EQ(layer.gate_up.elements, 2 * experts * matrix);
  EXPECT_EQ(layer.gate_up.bytes, 2 * experts * matrix);
}

TEST(describe, tells_fused_transposed_and_straddled_stacks) {
  for (dialect_case const& dialect : dialect_cases()) {
    if (dialect.id != "D10" && dialect.id != "D14") continue;
    temp_folder folder;
    write_checkpoint(folder, dialect.build());
    auto const described = describe(checkpoint_reader(folder.path().string()));
    layer_description const& layer = described.layer_list.front();
    EXPECT_TRUE(layer.gate.fused && layer.gate.stacked && layer.down.stacked);
    EXPECT_FALSE(layer.down.fused);
    EXPECT_EQ(layer.gate.transposed, dialect.id == "D10");
    EXPECT_EQ(layer.gate.has_bias, dialect.id == "D14");
    EXPECT_EQ(layer.gate.gate_up,
              dialect.id == "D14" ? gate_up_layout::interleaved : gate_up_layout::concatenated);
    EXPECT_EQ(to_string(layer.gate.layout), dialect.id == "D10" ? "block:128x128" : "group:32");
    EXPECT_EQ(layer.stored_bytes, described.tensor_bytes);  // a fused tensor counts once
  }
}

TEST(describe, keeps_mtp_layers_apart_and_records_what_was_assumed) {
  checkpoint_builder builder = three_layers();
  builder.config(case_config(declared + R"(, "num_nextn_predict_layers": 1)", 2));
  temp_folder folder;
  write_checkpoint(folder, builder);
  checkpoint_options options;
  options.assume = {"experts=3"};
  checkpoint_reader const reader(folder.path().string(), options);
  auto const described = describe(reader);
  EXPECT_THAT(described.assumed, testing::ElementsAre("experts=3"));
  EXPECT_EQ(described.mtp_layers, 1);
  ASSERT_EQ(described.layer_list.size(), 3U);
  EXPECT_FALSE(described.layer_list[1].mtp);
  EXPECT_TRUE(described.layer_list[2].mtp);
  EXPECT_EQ(described.layer_list[2].layer, 2);
  EXPECT_NO_THROW(load(reader, {2, true}));
  EXPECT_MOE64_ERROR(load(reader, {2, false}), errc::invalid_argument, "layers: 0 to 1",
                     "MTP layers: 2");
}

TEST(describe, knows_which_stacks_no_32_bit_index_reaches) {
  stack_extent const glm52{6'442'450'944, 6'442'450'944};
  EXPECT_TRUE(glm52.passes_int32_elements());
  EXPECT_TRUE(glm52.passes_uint32_bytes());
  stack_extent const last{INT32_MAX, UINT32_MAX};
  EXPECT_FALSE(last.passes_int32_elements());
  EXPECT_FALSE(last.passes_uint32_bytes());
  stack_extent const next{index_t{INT32_MAX} + 1, index_t{UINT32_MAX} + 1};
  EXPECT_TRUE(next.passes_int32_elements());
  EXPECT_TRUE(next.passes_uint32_bytes());
}

}  // namespace
}  // namespace moe64::test
