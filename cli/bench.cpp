#include "fmt/format.h"
#include "lines.hpp"
#include "machine.hpp"
#include "moe64/cpu.hpp"
#include "nlohmann/json.hpp"
#include "standard_output.hpp"
#include "terminal.hpp"
#include "timing.hpp"
#include "verbs.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>

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
/// few tokens the runs of a layer take turns among so many routings, and those of a product on a
/// device among so many stacks of experts.
index_t routings_of(problem const& p) {
  constexpr index_t most = 16;
  if (p.op == operation::layer) return p.tokens <= 16 ? most : 1;
  bool const product = p.op == operation::grouped_gemm && p.tokens <= 4096;
  if (!product || p.device.kind == device_kind::cpu) return 1;
  constexpr double enough = 1 << 30;  // many times any cache
  double const experts = static_cast<double>(std::min(p.experts, checked_mul(p.tokens, p.top_k)));
  double const bytes = experts * static_cast<double>(p.hidden) * static_cast<double>(p.inter) *
                       (is_gated(p.act.kind) ? 2.0 : 1.0) *
                       static_cast<double>(bits(value_type(p.weight))) / 8.0;
  return std::clamp<index_t>(std::lround(std::ceil(enough / std::max(bytes, 1.0))), 1, most);
}

measured bench_one(problem const& p, bench_options const& options, cpu_pool& pool) {
  measured result;
  result.refused = attempt([&] {
    progress_bar bar(line_of(p), "runs", options.progress);
    reset_peak_memory();
    cases::problem_case c(p, {cases::data_mode::random, &pool, -1, routings_of(p), true});
    cases::queue const queue(p.device, &pool);
    result.implementation = c.implementation(queue.get());
    result.time = time_of(c, queue.get(), options.min_seconds, bar);
    result.work = c.cost();
    result.routings = c.routings();
    result.operand_bytes = c.operand_bytes();
    result.workspace_bytes = c.workspace_bytes();
    bool const on_cpu = p.device.kind == device_kind::cpu;
    result.peak_bytes = on_cpu ? peak_memory() : static_cast<double>(c.device_bytes());
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
    bool const by_reading = limits.read_bytes_per_s > 0.0;
    double const read = by_reading ? limits.read_bytes_per_s : limits.copy_bytes_per_s;
    std::string const weights =
        streamed > 0.0 ? fmt::format(" | weights {}, {:.1f} % of {}", human_rate(streamed, "B/s"),
                                     100.0 * streamed / read, by_reading ? "read" : "copy")
                       : "";
    fmt::print("{} | {} | {} | {}{} | {:.1f} % of {}{} | workspace {} | peak {}\n",
               printable(line_of(p)), printable(m.implementation), human_seconds(seconds), flops,
               human_rate(m.work.bytes / seconds, "B/s"), 100.0 * share.share, share.limit, weights,
               human_bytes(static_cast<double>(m.workspace_bytes)), human_bytes(m.peak_bytes));
  }
  flush_output();
}

std::string text_of(machine_limits const& limits) {
  std::string text = fmt::format("copy {}", human_rate(limits.copy_bytes_per_s, "B/s"));
  if (limits.read_bytes_per_s > 0.0) {
    text += fmt::format(", read {}", human_rate(limits.read_bytes_per_s, "B/s"));
  }
  if (limits.fma_flops_per_s > 0.0) {
    text += fmt::format(", multiply-add {}", human_rate(limits.fma_flops_per_s, "FLOP/s"));
  }
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
    object["weight_read_share"] =  // null where reading was not measured
        m.work.weight_bytes / m.time.median / limits.read_bytes_per_s;
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
  flush_output();
}

/// The limits of every device that a problem asks for, measured before the first runs on it.
class device_limits {
 public:
  device_limits(cpu_pool& pool, bool print) : pool_(pool), print_(print) {}

  machine_limits const& of(moe64::device where) {
    auto const [found, added] = known_.try_emplace(to_string(where));
    if (!added) return found->second;
    bool const on_cpu = where.kind == device_kind::cpu;
    // A device that cannot be used is for the problem to complain about.
    (void)attempt(
        [&] { found->second = on_cpu ? measure_limits(pool_) : measure_cuda_limits(where); });
    if (print_) {
      std::string const name =
          on_cpu ? fmt::format("{} threads", pool_.concurrency()) : to_string(where);
      fmt::print(stderr, "limits on {}: {}\n", name, text_of(found->second));
    }
    return found->second;
  }

 private:
  cpu_pool& pool_;
  bool print_;
  std::map<std::string, machine_limits> known_;
};

}  // namespace

exit_code bench(bench_options const& options) {
  auto const problems = read_problems(options.lines, options.file);
  cpu_pool pool(options.threads);
  device_limits all_limits(pool, !options.json);
  exit_code refused = exit_code::ok;
  for (problem const& p : problems) {
    machine_limits const& limits = all_limits.of(p.device);
    measured const m = bench_one(p, options, pool);
    share_of_limit const share = share_of(m.work, m.time.median, m.implementation, limits);
    options.json ? print_json(p, m, share, limits, options.threads)
                 : print_text(p, m, share, limits);
    if (refused == exit_code::ok) refused = m.refused.code;
  }
  return refused;
}

}  // namespace moe64::cli
