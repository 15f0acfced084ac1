#include "fmt/format.h"
#include "lines.hpp"
#include "moe64/cpu.hpp"
#include "nlohmann/json.hpp"
#include "standard_output.hpp"
#include "terminal.hpp"
#include "verbs.hpp"

#include <chrono>
#include <cstdio>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

struct outcome {
  cases::verification found;
  refusal refused;
  double seconds = 0.0;

  [[nodiscard]] bool ok() const { return refused.code == exit_code::ok && found.ok(); }
};

outcome verify_one(problem const& p, verify_options const& options, cpu_pool& pool) {
  outcome result;
  auto const begin = std::chrono::steady_clock::now();
  result.refused = attempt([&] {
    progress_bar bar(line_of(p), "rows", options.progress);
    cases::problem_case c(p, {options.data, &pool, -1});
    cases::queue const queue(p.device, &pool);
    run(c, queue.get());
    result.found = c.verify(queue.get(), options.budget,
                            [&](index_t done, index_t total) { bar.update(done, total); });
  });
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::string errors_of(cases::verification const& found) {
  std::string text;
  for (cases::output_error const& output : found.outputs) {
    if (output.per_expert && output.compared == 0) continue;
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", output.output, human_error(output.worst));
    if (output.worst > 0.0 && output.worst_expert >= 0) {
      text += fmt::format(" (expert {})", output.worst_expert);
    }
  }
  return text.empty() ? "nothing to compare" : text;
}

/// "9 of 9 rows", how much was compared of the gradients of parameters, and the slots that hold no
/// expert.
std::string coverage_of(cases::verification const& found) {
  std::string text;
  auto const add = [&](std::string const& part) { text += (text.empty() ? "" : ", ") + part; };
  if (found.outputs.empty() || !found.outputs.front().per_expert) {
    add(fmt::format("{} of {} rows", found.compared, found.total));
  }
  std::string left_out;
  bool told = false;
  for (cases::output_error const& output : found.outputs) {
    if (!output.per_expert) continue;
    if (output.compared == 0) {
      left_out += (left_out.empty() ? "" : ", ") + output.output;
    } else if (!told) {
      told = true;
      add(fmt::format("parameters of {} of {} experts", output.compared, output.total));
      if (output.neurons >= 0) text += fmt::format(" ({} neurons of each)", output.neurons);
    }
  }
  if (!left_out.empty()) add(left_out + " past the budget");
  if (found.skipped_slots > 0) add(fmt::format("{} slots without expert", found.skipped_slots));
  return text;
}

void print_text(problem const& p, outcome const& result) {
  if (result.refused.code != exit_code::ok) {
    fmt::print("{} | not run: {}\n", printable(line_of(p)), result.refused.message);
  } else {
    auto const& found = result.found;
    fmt::print("{} | {} | {} | {} | {}\n", printable(line_of(p)), printable(found.implementation),
               errors_of(found), coverage_of(found),
               found.ok() ? "ok" : "FAIL: " + printable(found.message()));
  }
  flush_output();
}

void print_json(problem const& p, outcome const& result) {
  auto const& found = result.found;
  json object;
  object["problem"] = line_of(p);
  object["impl"] = found.implementation;
  object["ok"] = result.ok();
  object["worst_error"] = found.worst_error();  // infinity becomes null
  object["seconds"] = result.seconds;
  object["compared"] = found.compared;
  object["total"] = found.total;
  object["skipped_slots"] = found.skipped_slots;
  object["outputs"] = json::array();
  for (cases::output_error const& output : found.outputs) {
    object["outputs"].push_back({{"output", output.output},
                                 {"error", output.worst},
                                 {"bound", output.bound},
                                 {"row", output.worst_row},
                                 {"expert", output.worst_expert},
                                 {"compared", output.compared},
                                 {"total", output.total}});
    if (output.neurons >= 0) object["outputs"].back()["neurons"] = output.neurons;
  }
  object["message"] = result.refused.message.empty() ? found.message() : result.refused.message;
  if (result.refused.code != exit_code::ok) object["error"] = result.refused.name;
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
  flush_output();
}

}  // namespace

exit_code verify(verify_options const& options) {
  auto const problems = read_problems(options.lines, options.file);
  cpu_pool pool(options.threads);
  exit_code refused = exit_code::ok;
  index_t wrong = 0;
  index_t good = 0;
  for (problem const& p : problems) {
    outcome const result = verify_one(p, options, pool);
    options.json ? print_json(p, result) : print_text(p, result);
    if (result.ok()) {
      ++good;
    } else if (result.refused.code == exit_code::ok) {
      ++wrong;
    } else if (refused == exit_code::ok) {
      refused = result.refused.code;
    }
  }
  index_t const total = std::ssize(problems);
  if (!options.json && total > 1) {
    fmt::print(stderr, "{} problems: {} ok, {} wrong, {} not run\n", total, good, wrong,
               total - good - wrong);
  }
  return wrong > 0 ? exit_code::failed : refused;
}

}  // namespace moe64::cli
