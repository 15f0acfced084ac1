#include "fmt/format.h"
#include "lines.hpp"
#include "machine.hpp"
#include "moe64/cpu.hpp"
#include "moe64/version.hpp"
#include "standard_output.hpp"
#include "terminal.hpp"
#include "timing.hpp"
#include "verbs.hpp"

#include <chrono>
#include <cstdio>

namespace moe64::cli {
namespace {

struct scene {
  char const* title;
  char const* line;
  char const* sentence;
};

constexpr scene scenes[] = {
    {"FP8 layer, forward and backward",
     "tokens=32 hidden=1024 inter=768 experts=16 top_k=4 lora=8 backward=1",
     "16 experts as FP8 checkpoints store them (e4m3 codes, one scale per 128x128 block), a "
     "training step with LoRA "
     "adapters: output, gradients of the input, of the routing weights and of the adapters."},
    {"the same, a third of the slots empty",
     "tokens=32 hidden=1024 inter=768 experts=16 top_k=4 lora=8 backward=1 routing=sentinel:0.33",
     "Routers and expert parallelism mark slots as \"no expert here\" with -1: such a slot is "
     "never read and adds "
     "exactly nothing."},
    {"gpt-oss style MXFP4 with biases",
     "tokens=16 hidden=720 inter=720 experts=8 top_k=4 weight=mxfp4 act=gptoss_glu bias=1 "
     "layout=interleaved",
     "4-bit weights, gate and up rows alternating, biases, a clamped activation, and widths that "
     "are no multiple of "
     "128: the format of another family of models, same layer."},
    {"weights past 2^32 elements",
     "tokens=2 hidden=4096 inter=4096 experts=128 top_k=1 routing=one_expert",
     "A gate_up stack of 4,294,967,296 elements with all tokens on its last expert, where 32-bit "
     "offsets would read "
     "something else. The memory is mapped, and only the expert in use is touched."},
};

struct row {
  std::string checked = "-", error = "-", allowed = "-", time = "-", speed = "-", verdict;
  exit_code code = exit_code::ok;
};

row play(scene const& s, cpu_pool& pool, progress_mode progress) {
  constexpr double oracle_budget = 1.2e8;  // multiply-adds: the oracle is the slow part of the demo
  row result;
  auto const refused = attempt([&] {
    problem const p = parse_problem(s.line);
    stream const where = cpu_stream(&pool);
    cases::problem_case c(p, {cases::data_mode::random, &pool, -1});
    progress_bar bar(s.title, "rows", progress);
    run(c, where);
    auto const found = c.verify(where, oracle_budget,
                                [&](index_t done, index_t total) { bar.update(done, total); });
    timing const time = time_of(c, where, 0.3, bar);
    for (auto const& output : found.outputs) {
      if (output.worst / output.bound < 0.999 * found.worst_share()) continue;
      result.error = human_error(output.worst);
      result.allowed = human_error(output.bound);
    }
    result.checked = fmt::format("{} of {}", found.compared, found.total);
    result.time = human_seconds(time.median);
    result.speed = human_rate(c.cost().flops / time.median, "FLOP/s");
    result.verdict = found.ok() ? "ok" : "FAIL";
    if (!found.ok()) {
      result.code = exit_code::failed;
      fmt::print(stderr, "{}: {}\n", s.title, found.message());
    }
  });
  if (refused.code != exit_code::ok) {
    result.verdict = "not run";
    result.code = refused.code;
    fmt::print(stderr, "{}: {}\n", s.title, refused.message);
  }
  return result;
}

}  // namespace

exit_code demo(index_t threads, progress_mode progress) {
  fmt::print(
      "moe64 {} on {} threads: synthetic expert layers, each compared with a slow reference in "
      "double "
      "precision.\n\n",
      version(), threads);
  flush_output();
  cpu_pool pool(threads);
  std::vector<std::vector<std::string>> rows{
      {"what", "tokens checked", "worst error", "allowed", "time", "speed", "verdict"}};
  exit_code code = exit_code::ok;
  int number = 0;
  for (scene const& s : scenes) {
    std::string const title = fmt::format("{}. {}", ++number, s.title);
    fmt::print("{}\n{}   moe64 verify {}\n\n", title, wrapped(s.sentence, 100, "   "), s.line);
    flush_output();
    row const result = play(s, pool, progress);
    rows.push_back({title, result.checked, result.error, result.allowed, result.time, result.speed,
                    result.verdict});
    if (code == exit_code::ok || result.code == exit_code::failed) code = result.code;
  }
  fmt::print(
      "The error is the distance to the reference as a share of the size of a row; what is allowed "
      "follows from "
      "the\nroundings of bf16. Time and speed are of one execution, forward (and backward in 1 and "
      "2).\n\n");
  fmt::print("{}", table(rows));
  if (code == exit_code::ok)
    fmt::print("\nAll is well. Next: moe64 doctor, moe64 bench --help, docs/cli.md\n");
  return code;
}

}  // namespace moe64::cli
