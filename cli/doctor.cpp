#include "fmt/format.h"
#include "lines.hpp"
#include "machine.hpp"
#include "moe64/cuda.hpp"
#include "moe64/version.hpp"
#include "nlohmann/json.hpp"
#include "terminal.hpp"
#include "verbs.hpp"

#include <cstdio>
#include <iterator>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

/// Small calls that stand for what people run: FP8 weights in blocks, bf16 activations.
constexpr char const* extents = "tokens=4 hidden=256 inter=256 experts=8 top_k=2";
constexpr char const* questions[] = {
    "quantize",
    "dequantize",
    "route",
    "route backward=1",
    "plan",
    "gather",
    "grouped_gemm",
    "grouped_gemm mode=w8a8",
    "grouped_gemm weight=bf16",
    "grouped_gemm_wgrad weight=bf16",
    "activate",
    "activate backward=1",
    "combine",
    "combine backward=1",
};

constexpr std::size_t page_columns = 100;

/// "label      text", lines of it below each other.
void print_row(char const* label, std::string const& text) {
  constexpr std::size_t indent = 11;
  std::string lines =
      wrapped(text.empty() ? "none" : text, page_columns - indent, std::string(indent, ' '));
  std::string_view const word(label);
  lines.replace(0, word.size(), word);
  fmt::print("{}", lines);
}

std::string build_of() {
#if defined(__clang__)
  std::string const compiler = fmt::format("clang {}", __clang_version__);
#else
  std::string const compiler = fmt::format("gcc {}", __VERSION__);
#endif
#if defined(__OPTIMIZE__)
  std::string const kind = "optimised";
#else
  std::string const kind = "not optimised";
#endif
#if defined(NDEBUG)
  return fmt::format("{}, {}, without assertions", compiler, kind);
#else
  return fmt::format("{}, {}, with assertions", compiler, kind);
#endif
}

/// "available", or why CUDA is off.
std::string cuda_answer() {
  support const answer = cuda_support();
  return answer ? "available" : "off: " + printable(answer.reason());
}

/// A device, or why it cannot be asked.
struct cuda_entry {
  cuda_device_info info;
  refusal refused;
};

std::vector<cuda_entry> cuda_devices() {
  std::vector<cuda_entry> all(static_cast<std::size_t>(cuda_device_count()));
  std::int16_t ordinal = 0;
  for (cuda_entry& entry : all) {
    entry.refused = attempt([&] { entry.info = cuda_info(device::cuda(ordinal)); });
    ++ordinal;
  }
  return all;
}

std::string text_of(cuda_entry const& entry) {
  if (entry.refused.code != exit_code::ok) return entry.refused.message;
  cuda_device_info const& info = entry.info;
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {}, {} free",
                     printable(info.name), info.major, info.minor, info.multiprocessors,
                     human_bytes(static_cast<double>(info.memory_bytes)),
                     human_bytes(static_cast<double>(info.memory_free)));
}

json json_of(cuda_entry const& entry) {
  if (entry.refused.code != exit_code::ok) return {{"error", entry.refused.message}};
  cuda_device_info const& info = entry.info;
  return {{"name", info.name},
          {"compute_capability", fmt::format("{}.{}", info.major, info.minor)},
          {"multiprocessors", info.multiprocessors},
          {"memory_bytes", info.memory_bytes},
          {"memory_free", info.memory_free}};
}

/// The devices whose implementations are listed: the CPU, and the first CUDA device.
std::vector<moe64::device> asked_devices() {
  std::vector<moe64::device> all{device::cpu()};
  if (cuda_support()) all.push_back(device::cuda(0));
  return all;
}

struct choice {
  moe64::device where;
  std::string operation;
  std::string asked;  ///< which of the questions
  std::string problem_line;
  std::string chosen;
  std::string reason;
};

std::vector<choice> choices(moe64::device where) {
  std::vector<choice> all;
  for (char const* question : questions) {
    problem p = parse_problem(fmt::format("op={} {}", question, extents));
    p.device = where;
    cases::problem_case const c(p);
    for (cases::operation_report const& report : c.explain({where, nullptr})) {
      choice made{where, report.operation, question, line_of(p), "none", ""};
      for (implementation_report const& candidate : report.implementations) {
        if (!candidate.answer) {
          made.reason += fmt::format("not {}: {}; ", candidate.name, candidate.answer.reason());
          continue;
        }
        made.chosen = candidate.name;
        if (made.reason.empty()) {
          auto const count = report.implementations.size();
          made.reason = count == 1 ? "the only one" : fmt::format("the best of {}", count);
        } else {
          made.reason += "next best";
        }
        break;
      }
      all.push_back(std::move(made));
    }
  }
  return all;
}

/// The compute mode of whole layers, and why.
struct mode_answer {
  std::string layer, answer;
};

std::vector<mode_answer> modes(moe64::device where) {
  std::vector<mode_answer> all;
  for (char const* const layer :
       {"weight=e4m3", "weight=e4m3 scheme=dynamic", "weight=bf16", "weight=mxfp4"}) {
    problem p =
        parse_problem(fmt::format("tokens=2 hidden=256 inter=256 experts=2 top_k=1 {}", layer));
    p.device = where;
    all.push_back({layer, cases::problem_case(p).remark()});
  }
  return all;
}

void print_text(machine const& m) {
  fmt::print("moe64 {}\n", version());
  print_row("build", build_of());
  print_row("cpu", fmt::format("{}, {} cores usable", printable(m.cpu_model), m.cores));
  print_row("extensions", fmt::format("{}", fmt::join(m.extensions, " ")));
  print_row("memory", m.memory_total == 0
                          ? "unknown: no /proc/meminfo"
                          : fmt::format("{}, {} available", human_bytes(m.memory_total),
                                        human_bytes(m.memory_available)));
  print_row("cuda", cuda_answer());
  if (!cuda_architectures().empty()) {
    print_row("", fmt::format("machine code for {}", cuda_architectures()));
  }
  index_t ordinal = 0;
  for (cuda_entry const& entry : cuda_devices()) {
    print_row(fmt::format("  cuda:{}", ordinal++).c_str(), text_of(entry));
  }

  fmt::print("\nAsked with {}:\n", extents);
  for (moe64::device const where : asked_devices()) {
    std::vector<std::vector<std::string>> rows{{"on " + to_string(where), "implementation", "why"}};
    for (choice const& c : choices(where)) {
      // a gradient may be made of another operation
      bool const other = c.asked.substr(0, c.asked.find(' ')) != c.operation;
      rows.push_back({other ? c.asked + ": " + c.operation : c.asked, c.chosen, c.reason});
    }
    fmt::print("\n{}", table(rows, page_columns));
  }
  for (moe64::device const where : asked_devices()) {
    std::vector<std::vector<std::string>> rows{{"layer on " + to_string(where), "answer"}};
    for (mode_answer const& mode : modes(where)) rows.push_back({mode.layer, mode.answer});
    fmt::print("\n{}", table(rows, page_columns));
  }
  fmt::print(
      "\nForce an implementation with impl=NAME; MOE64_VERBOSE=2 prints each choice as it is "
      "made.\n");
}

void print_json(machine const& m) {
  json object;
  object["version"] = version();
  object["build"] = build_of();
  object["cpu"] = {{"model", m.cpu_model}, {"cores", m.cores}, {"extensions", m.extensions}};
  if (m.memory_total > 0) {  // otherwise the system does not say
    object["memory"] = {{"total_bytes", static_cast<index_t>(m.memory_total)},
                        {"available_bytes", static_cast<index_t>(m.memory_available)}};
  }
  object["devices"] = {{"cpu", "available"}, {"cuda", cuda_answer()}};
  object["cuda_architectures"] = cuda_architectures();
  object["cuda_devices"] = json::array();
  for (cuda_entry const& entry : cuda_devices()) {
    object["cuda_devices"].push_back(json_of(entry));
  }
  object["operations"] = json::array();
  for (moe64::device const where : asked_devices()) {
    for (choice const& c : choices(where)) {
      object["operations"].push_back({{"operation", c.operation},
                                      {"device", to_string(c.where)},
                                      {"problem", c.problem_line},
                                      {"impl", c.chosen},
                                      {"why", c.reason}});
    }
  }
  object["layers"] = json::array();
  for (moe64::device const where : asked_devices()) {
    for (mode_answer const& mode : modes(where)) {
      object["layers"].push_back(
          {{"layer", mode.layer}, {"device", to_string(where)}, {"answer", mode.answer}});
    }
  }
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace

exit_code doctor(bool as_json) {
  machine const m = look_at_machine();
  as_json ? print_json(m) : print_text(m);
  return exit_code::ok;
}

}  // namespace moe64::cli
