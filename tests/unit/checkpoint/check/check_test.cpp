#include "checkpoint/check/findings.hpp"
#include "moe64/cpu.hpp"
#include "support/error_matcher.hpp"
#include "support/safetensors_text.hpp"
#include "support/stored_checkpoint.hpp"
#include "support/temp_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace moe64::test {
namespace {

using checkpoint::value_codec;
using testing::HasSubstr;
using enum file_dtype;

class checked_dialect : public testing::TestWithParam<dialect_case> {
 protected:
  stored_checkpoint stored{GetParam().build(), 3};
  checkpoint::resolved_checkpoint resolved = stored.described().resolve();
  checkpoint::layer_entry const& layer = resolved.layers.front();
};

TEST_P(checked_dialect, has_nothing_wrong_with_it_and_is_read_once) {
  check_report const report = stored.check(3);
  EXPECT_TRUE(report.ok()) << texts_of(report);
  EXPECT_EQ(report.count(finding_level::warning), 0) << texts_of(report);
  EXPECT_EQ(count_of(report, "unusual-scale") + count_of(report, "empty-block"), 0)
      << texts_of(report);
  EXPECT_EQ(report.totals.read_bytes, stored.data_bytes());
  EXPECT_EQ(report.totals.data_bytes, stored.data_bytes());
  EXPECT_EQ(stored.bytes_not_read_once(), 0);
  EXPECT_EQ(report.totals.matched, report.totals.weights_found);
  EXPECT_EQ(report.totals.wrong_scales, 0);
  ASSERT_EQ(report.layers.size(), 1U);
  EXPECT_EQ(report.layers.front().dialect, GetParam().id);
  EXPECT_GT(report.totals.median_scale, 0x1p-14);
  EXPECT_LT(report.totals.median_scale, 0x1p-9);
  index_t matrices = 0;
  for (projection_statistics const& part : report.layers.front().projections) {
    EXPECT_EQ(part.experts.size(), static_cast<std::size_t>(case_extents::experts));
    for (matrix_statistics const& one : part.experts) {
      index_t const all = case_extents::hidden * case_extents::inter;
      EXPECT_EQ(one.elements, part.projection == "gate_up" ? 2 * all : all);
      EXPECT_GT(one.scale_min, 0.0);
      EXPECT_LE(one.scale_min, one.scale_median);
      EXPECT_LE(one.scale_median, one.scale_max);
      EXPECT_GE(one.amax, one.scale_max);
      ++matrices;
    }
  }
  EXPECT_EQ(report.totals.codes,
            3 * case_extents::experts * case_extents::hidden * case_extents::inter);
  EXPECT_GE(matrices, 2 * case_extents::experts);
}

TEST_P(checked_dialect, gives_the_same_report_on_any_number_of_threads) {
  check_report const one = stored.check(1);
  check_report const many = stored.check(4);
  EXPECT_EQ(texts_of(one), texts_of(many));
  ASSERT_EQ(one.layers.size(), many.layers.size());
  auto const& first = one.layers.front().projections;
  auto const& second = many.layers.front().projections;
  for (std::size_t part = 0; part < first.size(); ++part) {
    for (std::size_t e = 0; e < first[part].experts.size(); ++e) {
      EXPECT_EQ(first[part].experts[e].saturated, second[part].experts[e].saturated);
      EXPECT_EQ(first[part].experts[e].scale_median, second[part].experts[e].scale_median);
      EXPECT_EQ(first[part].experts[e].amax, second[part].experts[e].amax);
    }
  }
}

TEST_P(checked_dialect, has_its_nan_codes_found) {
  if (GetParam().values != value_codec::e4m3) return;  // the others have none
  auto const& source = layer.down.experts[1];
  std::string const name(source.values->name);
  index_t const slice = source.values->bytes / (layer.down.stacked ? case_extents::experts : 1);
  index_t const first = layer.down.stacked ? slice : 0;
  for (index_t const at : {index_t{3}, index_t{1000}, slice - 1}) {
    stored.set<std::uint8_t>(name, first + at, at == 1000 ? 0xff : 0x7f);
  }
  check_report const report = stored.check(2);
  EXPECT_EQ(report.count(finding_level::error), 1) << texts_of(report);
  ASSERT_EQ(count_of(report, "nan-code"), 1) << texts_of(report);
  EXPECT_THAT(texts_of(report), HasSubstr(name));
  EXPECT_THAT(texts_of(report), HasSubstr(fmt::format("3 of {} codes", slice)));
  EXPECT_EQ(report.totals.nan_codes, 3);
  for (projection_statistics const& part : report.layers.front().projections) {
    for (matrix_statistics const& one : part.experts) {
      EXPECT_EQ(one.non_finite, part.projection == "down" && one.expert == 1 ? 3 : 0);
    }
  }
}

TEST_P(checked_dialect, has_scales_that_are_no_numbers_found) {
  std::string const name(layer.up.experts.back().scales->name);
  file_dtype const type = stored.described().type_of(name);
  if (type == f32) stored.set<std::uint32_t>(name, 0, 0x7fc00000);
  if (type == bf16) stored.set<std::uint16_t>(name, 0, 0x7f80);
  if (type == f16) stored.set<std::uint16_t>(name, 0, 0x7c00);
  if (type == u8 || type == f8_e8m0) stored.set<std::uint8_t>(name, 0, 0xff);
  if (type == f8_e4m3) stored.set<std::uint8_t>(name, 0, 0x7f);
  check_report const report = stored.check();
  EXPECT_EQ(report.count(finding_level::error), 1) << texts_of(report);
  EXPECT_EQ(count_of(report, "non-finite-scale"), 1) << texts_of(report);
  EXPECT_THAT(texts_of(report), HasSubstr(name));
}

TEST_P(checked_dialect, has_negative_scales_found) {
  std::string const name(layer.gate.experts.front().scales->name);
  file_dtype const type = stored.described().type_of(name);
  if (type == u8 || type == f8_e8m0) return;  // have no sign
  std::vector<std::byte>& bytes = stored.bytes(name);
  std::size_t const size = static_cast<std::size_t>(checkpoint::bits(type)) / 8;
  bytes[size - 1] |= std::byte{0x80};  // little-endian: the sign is in the last byte
  check_report const report = stored.check();
  EXPECT_EQ(report.count(finding_level::error), 1) << texts_of(report);
  EXPECT_EQ(count_of(report, "negative-scale"), 1) << texts_of(report);
}

/// Where the codes of one stored scale lie, by the formats that the library loads with.
std::vector<index_t> codes_of_scale(checkpoint::layer_entry const& layer,
                                    checkpoint::tensor_entry const* scales, index_t wanted,
                                    checkpoint::tensor_entry const*& values) {
  std::vector<index_t> codes;
  for (checkpoint::projection_entry const* const entry : {&layer.gate, &layer.up, &layer.down}) {
    checkpoint::stack_format const& format = entry->format;
    index_t const rows_per_scale = format.layout.rows_per_scale(format.rows);
    index_t const cols_per_scale = format.layout.cols_per_scale(format.cols);
    for (checkpoint::expert_source const& source : entry->experts) {
      if (source.scales != scales) continue;
      values = source.values;
      for (index_t r = 0; r < format.rows; ++r) {
        for (index_t c = 0; c < format.cols; ++c) {
          bool const expanded = format.expand_scale_rows;
          checkpoint::placement const& place = expanded ? format.stored_scales : format.scales;
          index_t const row =
              expanded ? (format.expand_offset + r) / format.expand_block : r / rows_per_scale;
          index_t const scale = place.first + row * place.row_stride +
                                c / cols_per_scale * place.col_stride + source.slice * place.slice;
          if (scale != wanted) continue;
          codes.push_back(format.values.first + r * format.values.row_stride +
                          c * format.values.col_stride + source.slice * format.values.slice);
        }
      }
    }
  }
  return codes;
}

void set_code(std::vector<std::byte>& bytes, value_codec codec, index_t at, unsigned code) {
  if (codec == value_codec::e4m3) {
    bytes[static_cast<std::size_t>(at)] = static_cast<std::byte>(code);
    return;
  }
  std::byte& both = bytes[static_cast<std::size_t>(at / 2)];
  unsigned const old = std::to_integer<unsigned>(both);
  both = static_cast<std::byte>(at % 2 == 0 ? (old & 0xf0U) | code : (old & 0x0fU) | code << 4U);
}

/// A zero scale is wrong exactly while one of its own codes is not zero. That depends on which
/// codes are its own: on partial blocks, transposed stacks, interleaved rows, scales of rows and
/// columns.
TEST_P(checked_dialect, has_zero_scales_held_against_their_own_codes) {
  value_codec const codec = GetParam().values;
  auto const& source = layer.up.experts.back();
  std::string const name(source.scales->name);
  file_dtype const type = stored.described().type_of(name);
  if (type == u8 || type == f8_e8m0) return;  // have no zero
  index_t const count =
      static_cast<index_t>(stored.bytes(name).size()) * 8 / checkpoint::bits(type);
  for (index_t const scale : {count - 1, count / 2, index_t{0}}) {
    std::vector<std::byte> const scales_before = stored.bytes(name);
    checkpoint::tensor_entry const* values = nullptr;
    std::vector<index_t> const codes = codes_of_scale(layer, source.scales, scale, values);
    ASSERT_FALSE(codes.empty());
    std::string const value_name(values->name);
    std::vector<std::byte> const values_before = stored.bytes(value_name);
    std::size_t const size = static_cast<std::size_t>(checkpoint::bits(type)) / 8;
    std::memset(stored.bytes(name).data() + static_cast<std::size_t>(scale) * size, 0, size);
    unsigned const zero = codec == value_codec::int4x8 ? 8 : 0;
    unsigned const negative_zero = codec == value_codec::e4m3     ? 0x80
                                   : codec == value_codec::int4x8 ? 8
                                                                  : 0x8;
    for (index_t const code : codes) set_code(stored.bytes(value_name), codec, code, zero);
    set_code(stored.bytes(value_name), codec, codes.front(), negative_zero);
    check_report const idle = stored.check(2);
    EXPECT_EQ(idle.count(finding_level::error), 0) << scale << '\n' << texts_of(idle);
    EXPECT_EQ(count_of(idle, "empty-block"), 1) << scale << '\n' << texts_of(idle);
    for (index_t const code : {codes.front(), codes[codes.size() / 2], codes.back()}) {
      set_code(stored.bytes(value_name), codec, code, 1);
      check_report const wrong = stored.check();
      EXPECT_EQ(count_of(wrong, "zero-scale"), 1) << scale << '\n' << texts_of(wrong);
      EXPECT_EQ(wrong.count(finding_level::error), 1) << texts_of(wrong);
      EXPECT_THAT(texts_of(wrong), HasSubstr("1 of"));
      set_code(stored.bytes(value_name), codec, code, zero);
    }
    stored.bytes(name) = scales_before;
    stored.bytes(value_name) = values_before;
  }
}

INSTANTIATE_TEST_SUITE_P(table, checked_dialect, testing::ValuesIn(dialect_cases()),
                         [](auto const& entry) { return entry.param.id; });

// ---- what is not about dialects -----------------------------------------------------------------

dialect_case const& case_of(std::string_view id) {
  for (dialect_case const& entry : dialect_cases()) {
    if (entry.id == id) return entry;
  }
  throw std::invalid_argument("no such case");
}

std::string const gate0 = "model.layers.0.mlp.experts.0.gate_proj";

TEST(check, finds_scales_that_are_no_powers_of_two_where_they_are_declared) {
  stored_checkpoint declared(case_of("D2").build());
  declared.set_number(gate0 + ".weight_scale_inv", 2, 0x1.8p-11);
  declared.set_number(gate0 + ".weight_scale_inv", 3, 0x1p-13);
  check_report const report = declared.check();
  EXPECT_EQ(count_of(report, "not-power-of-two"), 1) << texts_of(report);
  EXPECT_EQ(report.count(finding_level::error), 1) << texts_of(report);
  EXPECT_THAT(texts_of(report), HasSubstr("1 of 6 scales"));
  stored_checkpoint undeclared(case_of("D1").build());
  undeclared.set_number(gate0 + ".weight_scale_inv", 2, 0x1.8p-11);
  EXPECT_TRUE(undeclared.check().ok());
}

TEST(check, warns_of_subnormal_scales) {
  stored_checkpoint stored(case_of("D12").build());
  std::string const name =
      "language_model.model.layers.0.block_sparse_moe.experts.0.w1.weight_scale_inv";
  ASSERT_TRUE(stored.described().has(name));
  stored.set<std::uint8_t>(name, 7, 0);  // 2^-127
  check_report const report = stored.check();
  EXPECT_TRUE(report.ok()) << texts_of(report);
  EXPECT_EQ(count_of(report, "subnormal-scale"), 1) << texts_of(report);
  stored_checkpoint blocks(case_of("D1").build());
  blocks.set<std::uint32_t>(gate0 + ".weight_scale_inv", 0, 1);
  EXPECT_EQ(count_of(blocks.check(), "subnormal-scale"), 1);
}

TEST(check, counts_exactly) {
  stored_checkpoint stored(case_of("D1").build());
  index_t saturated = 0;
  index_t negative_zero = 0;
  index_t codes = 0;
  for (std::string const& name : stored.described().names()) {
    if (stored.described().type_of(name) != f8_e4m3) continue;
    for (std::byte const code : stored.bytes(name)) {
      ++codes;
      saturated += (code & std::byte{0x7f}) == std::byte{0x7e} ? 1 : 0;
      negative_zero += code == std::byte{0x80} ? 1 : 0;
    }
  }
  ASSERT_GT(saturated, 0);
  check_report const report = stored.check(2);
  EXPECT_EQ(report.totals.codes, codes);
  EXPECT_EQ(report.totals.saturated_codes, saturated);
  EXPECT_EQ(report.totals.negative_zero_codes, negative_zero);
  EXPECT_EQ(report.totals.nan_codes, 0);
  EXPECT_EQ(report.totals.scales, 3 * 3 * 6);
  index_t by_expert = 0;
  for (auto const& part : report.layers.front().projections) by_expert += part.all.saturated;
  EXPECT_EQ(by_expert, saturated);
}

TEST(check, finds_nan_in_plain_tensors_of_every_type) {
  for (auto const& [type, bits] :
       {std::pair{bf16, 0x7fc0U}, std::pair{f16, 0xfc00U}, std::pair{f32, 0x7f800000U}}) {
    checkpoint_builder described = case_of("D1").build();
    described.add("model.norm.weight", type, {77});
    stored_checkpoint stored(std::move(described));
    EXPECT_TRUE(stored.check().ok());
    if (type == f32) {
      stored.set<std::uint32_t>("model.norm.weight", 76, bits);
    } else {
      stored.set<std::uint16_t>("model.norm.weight", 76, static_cast<std::uint16_t>(bits));
    }
    check_report const report = stored.check();
    EXPECT_EQ(report.count(finding_level::error), 1);
    EXPECT_EQ(count_of(report, "non-finite-value"), 1) << texts_of(report);
    EXPECT_THAT(texts_of(report), HasSubstr("'model.norm.weight': 1 of 77"));
    EXPECT_EQ(report.totals.non_finite_numbers, 1);
  }
}

TEST(check, finds_wrong_global_and_activation_scales_and_stated_shapes) {
  stored_checkpoint nvfp4(case_of("D23").build());
  nvfp4.set_number(gate0 + ".weight_scale_2", 0, 0.0);
  check_report const global = nvfp4.check();
  EXPECT_EQ(count_of(global, "bad-global-scale"), 1) << texts_of(global);
  EXPECT_EQ(global.count(finding_level::error), 1) << texts_of(global);
  EXPECT_EQ(global.layers.front().projections[0].experts[0].wrong_scales, 1);

  stored_checkpoint input(case_of("D20").build());
  input.set_number(gate0 + ".input_scale", 0, -1.0);
  check_report const activation = input.check();
  EXPECT_EQ(count_of(activation, "bad-activation-scale"), 1) << texts_of(activation);
  EXPECT_EQ(activation.count(finding_level::error), 1) << texts_of(activation);

  stored_checkpoint packed(case_of("D13").build());
  packed.set<std::int64_t>(gate0 + ".weight_shape", 1, 319);
  check_report const stated = packed.check();
  EXPECT_EQ(count_of(stated, "weight-shape"), 1) << texts_of(stated);
  EXPECT_THAT(texts_of(stated), HasSubstr("states [192, 319], but the weight holds [192, 320]"));
}

TEST(check, does_not_count_what_fills_the_last_word_of_a_row) {
  checkpoint_builder described;
  std::string const config = case_of("D13").config;
  described.config(case_config(config, 1, 316, 192, 1));
  expert_tensors tensors;
  tensors.values = ".weight_packed";
  tensors.value_type = i32;
  tensors.values_per_element = 8;
  tensors.scales = ".weight_scale";
  tensors.scale_type = bf16;
  tensors.scale_shape = [](index_t rows, index_t cols) {
    return std::vector<index_t>{rows, ceil_div(cols, 32)};
  };
  add_experts(described, tensors, 1, 316, 192);
  stored_checkpoint stored(std::move(described));
  index_t saturated = 0;  // of gate: 192 rows of 316 nibbles and 4 more
  for (std::size_t i = 0; i < 192 * 320; ++i) {
    auto const byte = std::to_integer<unsigned>(stored.bytes(gate0 + ".weight_packed")[i / 2]);
    unsigned const nibble = i % 2 == 0 ? byte & 15U : byte >> 4U;
    saturated += i % 320 < 316 && (nibble == 0 || nibble == 15) ? 1 : 0;
  }
  check_report const report = stored.check(2);
  EXPECT_TRUE(report.ok()) << texts_of(report);
  matrix_statistics const& gate = report.layers.front().projections[0].experts.front();
  EXPECT_EQ(gate.elements, 192 * 316);
  EXPECT_EQ(gate.saturated, saturated);
  EXPECT_EQ(stored.bytes_not_read_once(), 0);
}

TEST(check, tells_of_dead_saturated_and_unusual_experts) {
  stored_checkpoint stored(case_of("D1").build());
  std::string const expert1 = "model.layers.0.mlp.experts.1.";
  std::ranges::fill(stored.bytes(gate0 + ".weight"), std::byte{0x80});
  std::fill_n(stored.bytes(expert1 + "up_proj.weight").begin(), 3000, std::byte{0xfe});
  stored.fill_number(expert1 + "down_proj.weight_scale_inv", 0x1p-6);
  check_report const report = stored.check();
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(count_of(report, "all-zero"), 1) << texts_of(report);
  EXPECT_EQ(count_of(report, "saturated"), 1) << texts_of(report);
  EXPECT_EQ(count_of(report, "unusual-scale"), 1) << texts_of(report);
  EXPECT_THAT(texts_of(report), HasSubstr("layer 0, down of expert 1: its median scale 0.0156"));
  EXPECT_EQ(count_of(report, "expert-size"), 1) << texts_of(report);
  EXPECT_EQ(report.findings.size(), 4U) << texts_of(report);
}

TEST(check, still_reads_what_cannot_be_resolved) {
  checkpoint_builder described = case_of("D1").build();
  described.remove(gate0 + ".weight_scale_inv");
  described.add("model.layers.0.mlp.experts.2.up_proj.weight", bf16, {7, 7});
  stored_checkpoint stored(std::move(described), 2);
  stored.set<std::uint8_t>(gate0 + ".weight", 0, 0x7f);
  check_report const report = stored.check();
  EXPECT_GE(count_of(report, "missing-scale"), 1) << texts_of(report);
  EXPECT_EQ(count_of(report, "nan-code"), 1) << texts_of(report);
  EXPECT_EQ(report.totals.read_bytes, stored.data_bytes());
  EXPECT_EQ(stored.bytes_not_read_once(), 0);
  EXPECT_LT(report.totals.matched, report.totals.weights_found);
}

TEST(check, cuts_large_matrices_without_reading_anything_twice) {
  // more than 1 MiB of scales: two bands of rows
  constexpr index_t rows = 300'000;
  constexpr index_t cols = 8;
  checkpoint_builder described;
  described.config(case_config(case_of("D6").config, 1, cols, rows, 1));
  expert_tensors tensors;
  tensors.scales = ".weight_scale";
  tensors.scale_shape = [](index_t outputs, index_t) { return std::vector<index_t>{outputs, 1}; };
  add_experts(described, tensors, 1, cols, rows);
  stored_checkpoint stored(std::move(described));
  std::string const up = "model.layers.0.mlp.experts.0.up_proj";
  for (index_t const row : {index_t{0}, rows - 1}) {
    stored.set_number(up + ".weight_scale", row, 0.0);
    stored.set<std::uint8_t>(up + ".weight", row * cols, 0x38);
  }
  stored.set<std::uint8_t>(up + ".weight", rows * cols - 1, 0x7f);
  check_report const report = stored.check(2);
  EXPECT_EQ(report.totals.read_bytes, stored.data_bytes());
  EXPECT_EQ(stored.bytes_not_read_once(), 0);
  EXPECT_EQ(report.count(finding_level::error), 2) << texts_of(report);
  EXPECT_THAT(texts_of(report), HasSubstr("2 of 300000 scales are zero, but"));
  EXPECT_THAT(texts_of(report), HasSubstr("1 of 2400000 codes are NaN"));
  matrix_statistics const& one = report.layers.front().projections[1].experts.front();
  EXPECT_EQ(one.elements, rows * cols);
  EXPECT_EQ(one.scales, rows);
  EXPECT_EQ(one.wrong_scales, 2);
}

TEST(check, reports_progress_and_stops_when_it_throws) {
  stored_checkpoint stored(case_of("D1").build());
  index_t last = -1;
  index_t total = -1;
  (void)stored.check(3, [&](index_t done, index_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  });
  EXPECT_EQ(last, stored.data_bytes());
  EXPECT_EQ(total, stored.data_bytes());
  struct stopped {};
  EXPECT_THROW((void)stored.check(3, [](index_t, index_t) { throw stopped(); }), stopped);
}

TEST(check, gives_a_report_of_the_rest_when_the_disk_cannot_be_read_in_places) {
  stored_checkpoint stored(case_of("D1").build());
  stored.set<std::uint8_t>(gate0 + ".weight", 5, 0x7f);
  stored.files.fails_after = 7;
  check_report const report = stored.check();
  EXPECT_FALSE(report.ok());
  EXPECT_GE(count_of(report, "unreadable"), 1) << texts_of(report);
  EXPECT_THAT(texts_of(report), HasSubstr("model-00001-of-00001.safetensors"));
  EXPECT_EQ(count_of(report, "nan-code"), 1) << texts_of(report);  // that was before
  EXPECT_LT(report.totals.read_bytes, report.totals.data_bytes);
  stored.files.fails_after = 0;
  EXPECT_EQ(stored.check().totals.read_bytes, 0);
}

TEST(check, takes_one_file_and_refuses_a_stream_of_another_device) {
  temp_folder const folder;
  std::string const path = folder.write(
      "one.safetensors",
      safetensors_bytes("{" + entry_text("w", "F8_E4M3", "4", "0,4") + "}", "\x7f\x01\x80\x7e"));
  checkpoint_reader const reader(path);
  check_report const report = check(reader, {}, cpu_stream());
  EXPECT_EQ(count_of(report, "nan-code"), 1) << texts_of(report);
  EXPECT_EQ(report.totals.saturated_codes, 1);
  EXPECT_EQ(report.totals.negative_zero_codes, 1);
  EXPECT_EQ(check(reader, {.values = false}, cpu_stream()).totals.read_bytes, 0);
  EXPECT_TRUE(throws_error(
      [&] {
        (void)check(reader, {}, {device::cuda(0), nullptr});
      },
      errc::device_mismatch, {"check", "cuda:0"}));
}

TEST(check, fails_when_a_file_changes_meanwhile) {
  temp_folder const folder;
  std::string const file =
      safetensors_bytes("{" + entry_text("w", "F8_E4M3", "4", "0,4") + "}", "\x01\x01\x01\x01");
  std::string const path = folder.write("one.safetensors", file);
  checkpoint_reader const reader(path);
  auto const grow = [&](index_t, index_t) { folder.write("one.safetensors", file + "more"); };
  EXPECT_TRUE(throws_error([&] { (void)check(reader, {}, cpu_stream(), grow); }, errc::io_failure,
                           {"one.safetensors"}));
}

}  // namespace
}  // namespace moe64::test
