#include "command_tree.hpp"

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "moe64/error.hpp"
#include "moe64/synth.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace moe64::cli {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    auto const end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// What the library takes; tests/cli/completion_test.py compares both lists with its messages.
constexpr std::string_view assumptions =
    "dialect= scale=tensor scale=row scale=block scale=group scale=mx32 block= group= "
    "orientation=rows orientation=transposed gate_up=concatenated gate_up=interleaved grid=fused "
    "grid=halves hidden= inter= experts= activation=silu_glu activation=gelu_glu "
    "activation=gelu_tanh_glu activation=gptoss_glu activation=clamped_silu_glu "
    "activation=step_glu activation=silu activation=gelu activation=relu2 limit= alpha= ignore=";
constexpr std::string_view problem_words =
    "op=layer op=quantize op=dequantize op=route op=plan op=gather op=grouped_gemm "
    "op=grouped_gemm_wgrad op=activate op=combine tokens= hidden= inter= experts= top_k= "
    "weight=f32 weight=bf16 weight=f16 weight=e4m3 weight=e5m2 weight=int8 weight=int4 "
    "weight=mxfp4 weight=nvfp4 scale=none scale=tensor scale=row scale=block: scale=group: "
    "scale_dtype=f32 scale_dtype=bf16 scale_dtype=f16 scale_dtype=e8m0 scale_dtype=e4m3 "
    "act=silu_glu act=gelu_glu act=gelu_tanh_glu act=gptoss_glu act=clamped_silu_glu act=step_glu "
    "act=silu act=gelu act=relu2 mode=auto mode=w8a16 mode=w8a8 mode=native scheme=unstated "
    "scheme=dynamic io=f32 io=bf16 io=f16 layout=concatenated layout=interleaved routing=uniform "
    "routing=zipf routing=one_expert routing=sentinel: weight_on=output weight_on=input lora= "
    "bias=0 bias=1 backward=0 backward=1 quantized=0 quantized=1 device=cpu device=cuda: seed= "
    "impl=";

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (synth_model const& model : synth_models()) names.push_back(model.like);
  return names;
}

std::vector<std::string> dialect_ids() {
  std::vector<std::string> ids;
  for (synth_model const& model : synth_models()) {
    if (std::find(ids.begin(), ids.end(), model.dialect) == ids.end()) ids.push_back(model.dialect);
  }
  ids.emplace_back("plain");
  return ids;
}

std::vector<std::string> fault_kinds() {
  std::vector<std::string> kinds;
  for (synth_fault const& fault : synth_faults()) kinds.push_back(fault.kind);
  return kinds;
}

/// What the name of a value means: the same in every verb.
void give_meaning(command_argument& argument) {
  constexpr std::array<std::string_view, 7> texts = {"N", "S", "T", "K", "SIZE", "SHARE", "LIST"};
  std::string_view const value = argument.value;
  auto const one_of = [&](std::vector<std::string> words) {
    argument.kind = value_kind::words;
    argument.words = std::move(words);
  };
  if (value.find('|') != std::string_view::npos) return one_of(split(value, '|'));
  if (value == "NAME") return one_of(model_names());
  if (value == "ID") return one_of(dialect_ids());
  if (value == "KIND") return one_of(fault_kinds());
  if (value == "KEY=VALUE") return one_of(split(assumptions, ' '));
  if (value == "LINE") return one_of(split(problem_words, ' '));
  if (value == "D") return one_of({"cpu", "cuda:"});
  if (value == "FILE") {
    argument.kind = value_kind::file;
  } else if (value == "OUT") {
    argument.kind = value_kind::folder;
  } else if (value == "DIR" || value == "OTHER" || value == "ADAPTER") {
    argument.kind = value_kind::checkpoint;
  } else if (std::find(texts.begin(), texts.end(), value) != texts.end()) {
    argument.kind = value_kind::text;
  } else {
    throw error(errc::internal, fmt::format("[completion] no meaning of the value {}", value));
  }
}

command_argument argument_of(CLI::Option const& option) {
  command_argument argument;
  for (std::string const& name : option.get_snames()) argument.names.push_back("-" + name);
  for (std::string const& name : option.get_lnames()) argument.names.push_back("--" + name);
  argument.text = option.get_description();
  argument.required = option.get_required();
  argument.repeats = option.get_items_expected_max() > 1;
  if (option.get_items_expected_max() == 0) return argument;
  argument.value = option.get_type_name();
  bool const listed = argument.value.find('|') != std::string::npos;
  if (argument.names.empty() && !listed) argument.value = option.get_name();
  give_meaning(argument);
  return argument;
}

command command_of(CLI::App const& app) {
  command made{app.get_name(), app.get_description(), app.get_footer(), {}, {}};
  for (CLI::Option const* const option : app.get_options()) {
    command_argument argument = argument_of(*option);
    (argument.names.empty() ? made.places : made.options).push_back(std::move(argument));
  }
  return made;
}

}  // namespace

command_tree tree_of(CLI::App const& app) {
  command_tree tree;
  tree.tool = command_of(app);
  for (CLI::App const* const verb : app.get_subcommands([](CLI::App const*) { return true; })) {
    tree.verbs.push_back(command_of(*verb));
  }
  return tree;
}

}  // namespace moe64::cli
