#include "checkpoint/merge/merge.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <cmath>

namespace moe64 {
namespace checkpoint {
namespace {

constexpr std::size_t named_tensors = 8;

std::optional<factor_layout> stated_layout(adapter_layout layout) {
  if (layout == adapter_layout::peft) return factor_layout::rank_major;
  if (layout == adapter_layout::unsloth) return factor_layout::grouped;
  return std::nullopt;
}

merged_tensor judged(std::string const& tensor, delta_sums const& sums) {
  merged_tensor result;
  result.tensor = tensor;
  result.delta = std::sqrt(sums.delta);
  result.kept = sums.delta > 0 ? 1 + sums.along / sums.delta : 1;
  result.error = sums.delta > 0 ? std::sqrt(sums.error / sums.delta) : 0;
  return result;
}

void warn(merge_report& report) {
  index_t lost = 0;
  index_t unchanged = 0;
  std::vector<std::string> named;
  for (merged_tensor const& tensor : report.merged) {
    unchanged += tensor.delta == 0 ? 1 : 0;
    if (tensor.survives()) continue;
    ++lost;
    if (named.size() >= named_tensors) continue;
    named.push_back(
        fmt::format("{}: {:.3f} of the change is there, with an error {:.2f} times its "
                    "size",
                    quoted(tensor.tensor), tensor.kept, tensor.error));
  }
  if (lost > 0) {
    report.warnings.push_back(
        fmt::format("in {} of {} tensors little of the adapter survives the rounding to the format "
                    "that was written",
                    lost, report.merged.size()));
    report.warnings.insert(report.warnings.end(), named.begin(), named.end());
  }
  if (unchanged > 0) {
    report.notes.push_back(
        fmt::format("{} of {} tensors get nothing from the adapter: their factors are zero",
                    unchanged, report.merged.size()));
  }
}

/// What convert says on behalf of a merge.
template <class Body>
auto as_merge(Body const& body) {
  try {
    return body();
  } catch (error const& refused) {
    constexpr std::string_view of_convert = "[convert]";
    std::string const text = refused.what();
    if (!text.starts_with(of_convert)) throw;
    throw error(refused.code(), "[merge]" + text.substr(of_convert.size()));
  }
}

void require_target(convert_target to) {
  if (to != convert_target::f16) return;
  fail(errc::invalid_argument, "[merge] to is {}, expected bf16, fp8-block, fp8-row or same",
       name(to));
}

}  // namespace

merge_report merge_files(checkpoint_reader::state const& base, std::string const& adapter,
                         std::string const& out, merge_options const& options, stream where,
                         progress_report const& progress, convert_environment environment) {
  return as_merge([&] {
    require_target(options.to);
    require_sound(base.resolved);
    adapter_files const opened = adapter_files::open(adapter, environment.files);
    weight_deltas const deltas(opened, base, stated_layout(options.layout),
                               options.memory_bytes / 2);
    std::vector<std::pair<std::string, delta_sums>> merged;
    environment.deltas = &deltas;
    environment.merged = &merged;
    convert_options how;
    how.to = options.to;
    how.memory_bytes = options.memory_bytes;
    how.shard_bytes = options.shard_bytes;
    merge_report report;
    static_cast<convert_report&>(report) =
        convert_files(base, out, how, where, progress, environment);
    report.pairs = static_cast<index_t>(opened.pairs().size());
    report.modules = deltas.modules();
    for (auto const& [tensor, sums] : merged) report.merged.push_back(judged(tensor, sums));
    warn(report);
    return report;
  });
}

}  // namespace checkpoint

merge_report merge(checkpoint_reader const& base, std::string const& adapter,
                   std::string const& out, merge_options const& options, stream where,
                   progress_report const& progress) {
  return checkpoint::merge_files(base.internals(), adapter, out, options, where, progress,
                                 {checkpoint::posix_files()});
}

adapter_fit check_adapter(checkpoint_reader const& base, std::string const& adapter,
                          adapter_layout layout) {
  checkpoint::require_sound(base.internals().resolved);
  checkpoint::adapter_files const opened =
      checkpoint::adapter_files::open(adapter, checkpoint::posix_files());
  checkpoint::weight_deltas const deltas(opened, base.internals(),
                                         checkpoint::stated_layout(layout), 0);
  return {static_cast<index_t>(opened.pairs().size()), deltas.modules(), opened.bytes()};
}

}  // namespace moe64
