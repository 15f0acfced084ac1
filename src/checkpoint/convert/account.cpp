#include "checkpoint/convert/account.hpp"

#include <fmt/format.h>

#include <array>

namespace moe64::checkpoint {

void account_for(checkpoint_reader::state const& from, conversion_plan const& plan,
                 std::vector<shard_record> const& records, convert_report& report) {
  std::span<tensor_entry const> const tensors = from.files.tensors();
  std::array<index_t, 4> counts = {};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ++counts[static_cast<std::size_t>(plan.fates[i])];
    report.input_bytes += tensors[i].bytes;
    report.tensors.push_back({std::string(tensors[i].name), plan.fates[i], plan.reasons[i]});
  }
  report.converted = counts[0];
  report.copied = counts[1];
  report.consumed = counts[2];
  report.dropped = counts[3];
  report.shards = static_cast<index_t>(plan.shards.size());
  for (planned_shard const& shard : plan.shards) {
    report.output_tensors += static_cast<index_t>(shard.tensors.size());
  }
  std::vector<std::string> named;
  for (shard_record const& record : records) {
    report.output_bytes += record.file.bytes;
    report.overflows += record.counts.overflows;
    report.not_finite += record.counts.not_finite;
    for (std::string const& text : record.anomalies) {
      if (named.size() < 8) named.push_back(text);
    }
  }
  if (report.overflows > 0) {
    report.anomalies.push_back(
        fmt::format("{} numbers are too large for f16 and became infinite", report.overflows));
  }
  if (report.not_finite > 0) {
    report.anomalies.push_back(
        fmt::format("{} numbers or scales of the output are not finite", report.not_finite));
  }
  report.anomalies.insert(report.anomalies.end(), named.begin(), named.end());
  for (std::string_view const id : from.resolved.dialects) report.dialects.emplace_back(id);
  report.assumed = from.resolved.assumed;
}

}  // namespace moe64::checkpoint
