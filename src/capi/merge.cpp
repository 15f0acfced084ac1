#include "moe64/merge.hpp"

#include "capi/checkpoint_handle.hpp"
#include "capi/convert.hpp"
#include "capi/guarded.hpp"
#include "moe64/c/merge.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

struct moe64_merge_report {
  moe64::merge_report report;
};

namespace moe64::capi {
namespace {

adapter_layout layout_of(moe64_adapter_layout given, argument const& at) {
  if (given <= MOE64_ADAPTER_UNSLOTH) return static_cast<adapter_layout>(given);
  fail(errc::invalid_argument, "{} is {}, which is no layout of adapters", at.text(), given);
}

convert_target target_of(moe64_merge_target given, argument const& at) {
  if (given <= MOE64_MERGE_SAME && given != static_cast<moe64_merge_target>(convert_target::f16)) {
    return static_cast<convert_target>(given);
  }
  fail(errc::invalid_argument, "{} is {}, which is no target of merge", at.text(), given);
}

merge_options to_cpp(moe64_merge_options const& given, argument const& at) {
  require_zero(given.reserved, at);
  merge_options options;
  options.to = target_of(given.to, at["to"]);
  options.layout = layout_of(given.layout, at["layout"]);
  options.memory_bytes = given.memory_bytes;
  options.shard_bytes = given.shard_bytes;
  return options;
}

std::vector<std::string> const& texts_of(merge_report const& report, moe64_finding_level level,
                                         argument const& at) {
  if (level == MOE64_FINDING_NOTE) return report.notes;
  if (level == MOE64_FINDING_WARNING) return report.warnings;
  if (level == MOE64_FINDING_ERROR) return report.anomalies;
  fail(errc::invalid_argument, "{} is {}, which is no level", at.text(), level);
}

moe64_merge_summary to_c(merge_report const& given) {
  moe64_merge_summary summary = moe64_merge_summary_init();
  summary.pairs = given.pairs;
  summary.modules = given.modules;
  summary.merged = std::ssize(given.merged);
  summary.notes = std::ssize(given.notes);
  summary.warnings = std::ssize(given.warnings);
  summary.anomalies = std::ssize(given.anomalies);
  summary.shards = given.shards;
  summary.shards_kept = given.shards_kept;
  summary.output_bytes = given.output_bytes;
  summary.buffer_bytes = given.buffer_bytes;
  return summary;
}

moe64_merged_tensor to_c(merged_tensor const& given) {
  moe64_merged_tensor tensor = moe64_merged_tensor_init();
  tensor.tensor = given.tensor.c_str();
  tensor.delta = given.delta;
  tensor.kept = given.kept;
  tensor.error = given.error;
  tensor.survives = given.survives() ? 1 : 0;
  return tensor;
}

}  // namespace
}  // namespace moe64::capi

using namespace moe64::capi;

extern "C" {

moe64_status moe64_check_adapter(const moe64_checkpoint* base, const char* adapter,
                                 moe64_adapter_layout layout, moe64_adapter_fit* fit) {
  return guarded([&] {
    argument const at("check_adapter");
    auto const& opened = required(base, at["base"]);
    std::string const path = &required(adapter, at["adapter"]);
    auto const stated = layout_of(layout, at["layout"]);
    auto& out = required(fit, at["fit"]);
    moe64::adapter_fit const found = moe64::check_adapter(opened.reader, path, stated);
    moe64_adapter_fit answer_fit = moe64_adapter_fit_init();
    answer_fit.pairs = found.pairs;
    answer_fit.modules = found.modules;
    answer_fit.bytes = found.bytes;
    answer_into(out, answer_fit, at["fit"]);
  });
}

moe64_status moe64_merge(const moe64_checkpoint* base, const char* adapter, const char* out,
                         const moe64_merge_options* options, moe64_stream stream,
                         moe64_progress progress, void* user_data, moe64_merge_report** report) {
  return guarded([&] {
    argument const at("merge");
    auto const& opened = required(base, at["base"]);
    std::string const from = &required(adapter, at["adapter"]);
    std::string const folder = &required(out, at["out"]);
    auto const how = to_cpp(sized_copy(options, at["options"]), at["options"]);
    auto const where = to_cpp(stream, at["stream"]);
    auto& made = required(report, at["report"]);
    auto created = std::make_unique<moe64_merge_report>();
    created->report = moe64::merge(opened.reader, from, folder, how, where,
                                   report_to("merge", progress, user_data));
    made = created.release();
  });
}

void moe64_merge_report_destroy(moe64_merge_report* report) { delete report; }

moe64_status moe64_merge_summarize(const moe64_merge_report* report, moe64_merge_summary* summary) {
  return guarded([&] {
    argument const at("merge_summarize");
    auto const& found = required(report, at["report"]);
    answer_into(required(summary, at["summary"]), to_c(found.report), at["summary"]);
  });
}

moe64_status moe64_merged_tensor_at(const moe64_merge_report* report, int64_t i,
                                    moe64_merged_tensor* tensor) {
  return guarded([&] {
    argument const at("merged_tensor_at");
    auto const& found = required(report, at["report"]).report;
    auto& out = required(tensor, at["tensor"]);
    answer_into(out, to_c(numbered(std::span(found.merged), i, at)), at["tensor"]);
  });
}

moe64_status moe64_merge_text_at(const moe64_merge_report* report, moe64_finding_level level,
                                 int64_t i, const char** text) {
  return guarded([&] {
    argument const at("merge_text_at");
    auto const& found = required(report, at["report"]).report;
    auto& out = required(text, at["text"]);
    out = numbered(std::span(texts_of(found, level, at["level"])), i, at).c_str();
  });
}

}  // extern "C"
