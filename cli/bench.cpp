#include "fmt/format.h"
#include "lines.hpp"
#include "machine.hpp"
#include "moe64/cpu.hpp"
#include "nlohmann/json.hpp"
#include "terminal.hpp"
#include "timing.hpp"
#include "verbs.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

struct measured {
  std::string implementation;
  timing time;
  cases::work work;
  index_t routings = 1;
  index_t operand_bytes = 0;
  index_t workspace_bytes = 0;
  double peak_bytes = 0.0;
  refusal refused;
};

/// The experts of one small batch can fit into a cache, where those of a decoder never stay: with
/// few tokens the runs take turns among so many routings.
index_t routings_of(problem const& p) {
  return p.op == operation::layer && p.tokens <= 16 ? 16 : 1;
}

measured bench_one(problem const& p, bench_options const& options, cpu_pool& pool) {
  measured result;
  result.refused = attempt([&] {
    progress_bar bar(line_of(p), "runs", options.progress);
    reset_peak_memory();
    cases::problem_case c(p, {cases::data_mode::random, &pool, -1, routings_of(p)});
    stream const where{p.device, p.device.kind == device_kind::cpu ? &pool : nullptr};
    result.implementation = c.implementation(where);
    result.time = time_of(c, where, options.min_seconds, bar);
    result.work = c.cost();
    result.routings = c.routings();
    result.operand_bytes = c.operand_bytes();
    result.workspace_bytes = c.workspace_bytes();
    result.peak_bytes = peak_memory();
  });
  return result;
}

void print_text(problem const& p, measured const& m, share_of_limit const& share,
                machine_limits const& limits) {
  if (m.refused.code != exit_code::ok) {
    fmt::print("{} | not run: {}\n", printable(line_of(p)), m.refused.message);
  } else {
    double const seconds = m.time.median;
    std::string const flops =
        m.work.flops > 0.0 ? human_rate(m.work.flops / seconds, "FLOP/s") + " | " : "";
    double const streamed = m.work.weight_bytes / seconds;
    std::string const weights =
        streamed > 0.0 ? fmt::format(" | weights {}, {:.1f} % of read", human_rate(streamed, "B/s"),
                                     100.0 * streamed / limits.read_bytes_per_s)
                       : "";
    fmt::print("{} | {} | {} | {}{} | {:.1f} % of {}{} | workspace {} | peak {}\n",
               printable(line_of(p)), printable(m.implementation), human_seconds(seconds), flops,
               human_rate(m.work.bytes / seconds, "B/s"), 100.0 * share.share, share.limit, weights,
               human_bytes(static_cast<double>(m.workspace_bytes)), human_bytes(m.peak_bytes));
  }
  std::fflush(stdout);
}

std::string text_of(machine_limits const& limits) {
  std::string text = fmt::format(
      "copy {}, read {}, multiply-add {}", human_rate(limits.copy_bytes_per_s, "B/s"),
      human_rate(limits.read_bytes_per_s, "B/s"), human_rate(limits.fma_flops_per_s, "FLOP/s"));
  if (limits.bf16_flops_per_s > 0.0) {
    text += fmt::format(", bf16 dot {}", human_rate(limits.bf16_flops_per_s, "FLOP/s"));
  }
  if (limits.bf16_tile_flops_per_s > 0.0) {
    text += fmt::format(", bf16 tile {}", human_rate(limits.bf16_tile_flops_per_s, "FLOP/s"));
  }
  if (limits.int8_ops_per_s > 0.0) {
    text += fmt::format(", int8 dot {}", human_rate(limits.int8_ops_per_s, "OP/s"));
  }
  return text;
}

json json_of(machine_limits const& limits) {
  return {{"copy_bytes_per_s", limits.copy_bytes_per_s},
          {"read_bytes_per_s", limits.read_bytes_per_s},
          {"fma_flops_per_s", limits.fma_flops_per_s},
          {"bf16_flops_per_s", limits.bf16_flops_per_s},
          {"bf16_tile_flops_per_s", limits.bf16_tile_flops_per_s},
          {"int8_ops_per_s", limits.int8_ops_per_s}};
}

void print_json(problem const& p, measured const& m, share_of_limit const& share,
                machine_limits const& limits, index_t threads) {
  json object;
  object["problem"] = line_of(p);
  object["impl"] = m.implementation;
  if (m.refused.code != exit_code::ok) {
    object["error"] = m.refused.name;
    object["message"] = m.refused.message;
  } else {
    object["seconds"] = m.time.median;
    object["flops_per_s"] = m.work.flops / m.time.median;
    object["bytes_per_s"] = m.work.bytes / m.time.median;
    object["limit_share"] = share.share;
    object["limit"] = share.limit;
    object["weight_bytes"] = m.work.weight_bytes;
    object["weight_bytes_per_s"] = m.work.weight_bytes / m.time.median;
    object["weight_read_share"] = m.work.weight_bytes / m.time.median / limits.read_bytes_per_s;
    object["operand_bytes"] = m.operand_bytes;
    object["workspace_bytes"] = m.workspace_bytes;
    object["peak_bytes"] = static_cast<index_t>(m.peak_bytes);
    object["fastest_seconds"] = m.time.fastest;
    object["runs"] = m.time.runs;
    object["routings"] = m.routings;
    object["threads"] = threads;
    object["limits"] = json_of(limits);
  }
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
  std::fflush(stdout);
}

}  // namespace

exit_code bench(bench_options const& options) {
  auto const problems = read_problems(options.lines, options.file);
  cpu_pool pool(options.threads);
  machine_limits const limits = measure_limits(pool);
  if (!options.json) {
    fmt::print(stderr, "limits on {} threads: {}\n", options.threads, text_of(limits));
  }
  exit_code refused = exit_code::ok;
  for (problem const& p : problems) {
    measured const m = bench_one(p, options, pool);
    share_of_limit const share = share_of(m.work, m.time.median, m.implementation, limits);
    options.json ? print_json(p, m, share, limits, options.threads)
                 : print_text(p, m, share, limits);
    if (refused == exit_code::ok) refused = m.refused.code;
  }
  return refused;
}

}  // namespace moe64::cli
