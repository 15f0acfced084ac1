#include "cases/loaded_layer.hpp"
#include "fmt/format.h"
#include "interrupt.hpp"
#include "layer_text.hpp"
#include "machine.hpp"
#include "moe64/cpu.hpp"
#include "verbs.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;
using clock = std::chrono::steady_clock;

double since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

/// What a run found out.
struct run_result {
  layer_description layer;
  index_t top_k = 0;
  index_t weight_bytes = 0;
  index_t workspace_bytes = 0;
  double load_seconds = 0.0;
  double forward_seconds = 0.0;   ///< median
  double backward_seconds = 0.0;  ///< median
  double flops = 0.0;             ///< of forward
  double peak_bytes = 0.0;
  mode_choice mode;
  cases::verification found;
};

/// As in a problem line; the library says whether it can be used.
moe64::device device_of(std::string const& text) {
  moe64::device const where = parse_problem("device=" + text).device;
  if (to_string(where) != text) {
    throw error(errc::invalid_argument,
                fmt::format("--device {}: expected cpu or cuda:N", printable(text)));
  }
  (void)plan_scratch_bytes(1, 1, 1, where);
  return where;
}

layer_description find_layer(checkpoint_description const& described, run_options const& options) {
  for (layer_description const& layer : described.layer_list) {
    if (layer.layer == options.layer && layer.mtp == options.mtp) return layer;
    if (layer.layer == options.layer && layer.mtp && !options.mtp) {
      throw error(errc::invalid_argument,
                  fmt::format("layer {} is one of multi-token prediction: add --mtp", layer.layer));
    }
  }
  return {};  // loading says which there are
}

index_t top_k_of(checkpoint_description const& described, run_options const& options) {
  if (options.top_k > 0) return options.top_k;
  if (described.top_k > 0) return described.top_k;
  throw error(errc::invalid_argument,
              "the config does not state how many experts a token has: add --top-k");
}

/// Median of at least three runs and half a second, after the one that verify looks at.
template <class Body>
double median_of(interrupt_watch const& watch, stream where, Body const& body) {
  std::vector<double> seconds;
  double total = 0.0;
  while (seconds.size() < 3 || (total < 0.5 && seconds.size() < 1000)) {
    watch.check();
    auto const begin = clock::now();
    body();
    cases::wait(where);
    seconds.push_back(since(begin));
    total += seconds.back();
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

run_result run_one(run_options const& options) {
  interrupt_watch const watch;
  checkpoint_reader const reader(options.folder, options.how);
  checkpoint_description const described = describe(reader);
  run_result result;
  result.layer = find_layer(described, options);
  layer_request const request{options.layer, options.mtp, 0, -1};
  result.weight_bytes = layer_bytes(reader, request);
  result.top_k = top_k_of(described, options);

  moe64::device const device = device_of(options.device);
  cpu_pool pool(options.threads);
  cases::queue const queue(device, &pool);
  stream const where = queue.get();
  reset_peak_memory();
  cases::arena memory(device);
  workspace const lent{memory.allocate("the layer", cases::purpose::input, result.weight_bytes),
                       result.weight_bytes, device::cpu()};
  auto const begin = clock::now();
  layer_desc layer = [&] {
    progress_bar bar("loading", "MB", options.progress);
    return load_layer(reader, request, lent, cpu_stream(&pool), [&](index_t done, index_t total) {
      watch.check();
      bar.update(done / 1'000'000, std::max<index_t>(1, total / 1'000'000));
    });
  }();
  for_each_operand(layer, [&](operand const& o) { o.tensor.device = device; });
  memory.upload();
  result.load_seconds = since(begin);

  cases::loaded_options wanted;
  wanted.tokens = options.tokens;
  wanted.top_k = result.top_k;
  wanted.seed = options.seed;
  wanted.backward = options.backward;
  cases::loaded_layer const c(layer, wanted, memory, &pool);
  memory.upload();
  result.mode = c.mode();
  result.flops = c.flops();
  memory.poison();
  c.forward(where);
  if (options.backward) c.backward(where);
  {
    progress_bar bar("comparing", "rows", options.progress);
    result.found = c.verify(where, options.budget, [&](index_t done, index_t total) {
      watch.check();
      bar.update(done, total);
    });
  }
  result.forward_seconds = median_of(watch, where, [&] { c.forward(where); });
  if (options.backward) {
    result.backward_seconds = median_of(watch, where, [&] { c.backward(where); });
  }
  result.workspace_bytes = memory.bytes(cases::purpose::scratch);
  bool const on_cpu = device.kind == device_kind::cpu;
  result.peak_bytes = on_cpu ? peak_memory() : static_cast<double>(memory.device_bytes());
  return result;
}

std::string errors_text(cases::verification const& found) {
  std::string text;
  for (cases::output_error const& output : found.outputs) {
    text += fmt::format("{}{} {} of {}", text.empty() ? "" : ", ", output.output,
                        human_error(output.worst), human_error(output.bound));
    if (output.worst > 0.0 && output.worst_expert >= 0) {
      text += fmt::format(" (expert {})", output.worst_expert);
    }
  }
  return text;
}

void print_text(run_options const& options, run_result const& result) {
  layer_description const& layer = result.layer;
  auto const row = [](char const* label, std::string const& text) {
    fmt::print("{:<10} {}\n", label, text);
  };
  double const weights = static_cast<double>(result.weight_bytes);
  row("layer", fmt::format("{} of {}: {} experts, hidden {}, inter {}, {}", layer_text(layer),
                           printable(options.folder), layer.experts, layer.hidden, layer.inter,
                           layer.dialect));
  row("gate, up", gate_up_text(layer));
  row("down", format_text(layer.down));
  row("mode", fmt::format("{}: {}", name(result.mode.mode), result.mode.reason));
  row("loaded",
      fmt::format("{} in {}, {}", human_bytes(weights), human_seconds(result.load_seconds),
                  human_rate(weights / result.load_seconds, "B/s")));
  row("forward", fmt::format("{} for {} tokens with {} experts each, {}, {}",
                             human_seconds(result.forward_seconds), options.tokens, result.top_k,
                             human_rate(result.flops / result.forward_seconds, "FLOP/s"),
                             printable(result.found.implementation)));
  if (options.backward) row("backward", human_seconds(result.backward_seconds));
  row("memory", fmt::format("weights {}, workspace {}, peak {}", human_bytes(weights),
                            human_bytes(static_cast<double>(result.workspace_bytes)),
                            human_bytes(result.peak_bytes)));
  row("error",
      fmt::format("{} | {} of {} rows | {}", errors_text(result.found), result.found.compared,
                  result.found.total,
                  result.found.ok() ? "ok" : "FAIL: " + printable(result.found.message())));
}

void print_json(run_options const& options, run_result const& result) {
  json object;
  object["checkpoint"] = options.folder;
  object["layer"] = to_json(result.layer);
  object["tokens"] = options.tokens;
  object["top_k"] = result.top_k;
  object["seed"] = options.seed;
  object["threads"] = options.threads;
  object["device"] = options.device;
  object["mode"] = name(result.mode.mode);
  object["impl"] = result.found.implementation;
  object["load_seconds"] = result.load_seconds;
  object["forward_seconds"] = result.forward_seconds;
  if (options.backward) object["backward_seconds"] = result.backward_seconds;
  object["flops_per_s"] = result.flops / result.forward_seconds;
  object["weight_bytes"] = result.weight_bytes;
  object["workspace_bytes"] = result.workspace_bytes;
  object["peak_bytes"] = result.peak_bytes;
  object["ok"] = result.found.ok();
  object["compared"] = result.found.compared;
  object["total"] = result.found.total;
  object["outputs"] = json::array();
  for (cases::output_error const& output : result.found.outputs) {
    object["outputs"].push_back({{"output", output.output},
                                 {"error", output.worst},
                                 {"bound", output.bound},
                                 {"row", output.worst_row},
                                 {"expert", output.worst_expert}});
  }
  object["message"] = result.found.message();
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace

exit_code run(run_options const& options) {
  run_result const result = run_one(options);
  options.json ? print_json(options, result) : print_text(options, result);
  return result.found.ok() ? exit_code::ok : exit_code::failed;
}

}  // namespace moe64::cli
