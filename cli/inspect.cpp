#include "fmt/format.h"
#include "layer_text.hpp"
#include "terminal.hpp"
#include "verbs.hpp"

#include <algorithm>
#include <cstdio>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

std::string joined(std::vector<std::string> const& words) {
  std::string text;
  for (std::string const& word : words) text += (text.empty() ? "" : ", ") + printable(word);
  return text;
}

void row(char const* label, std::string const& text) { fmt::print("{:<12} {}\n", label, text); }

std::string geometry_text(checkpoint_description const& described) {
  std::string text;
  auto const add = [&](char const* word, index_t extent) {
    if (extent >= 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", word, extent);
  };
  add("hidden", described.hidden);
  add("inter", described.inter);
  add("experts", described.experts);
  add("top_k", described.top_k);
  add("layers", described.layers);
  add("MTP layers", described.mtp_layers);
  return text.empty() ? "not stated" : text;
}

std::string activation_text(std::optional<activation_spec> const& spec) {
  if (!spec) return "not known";
  std::string text(name(spec->kind));
  if (spec->kind == activation::gptoss_glu) text += fmt::format(", alpha {}", spec->alpha);
  if (has_limit(spec->kind)) text += fmt::format(", limit {}", spec->limit);
  return text;
}

/// "silu_glu in layers 3 to 42, step_glu, limit 7 in layers 43 to 44"
std::string activations_of_layers(std::vector<layer_description> const& all) {
  std::string text;
  for (std::size_t begin = 0; begin < all.size();) {
    std::string const kind = activation_text(all[begin].activation);
    std::size_t end = begin + 1;
    while (end < all.size() && all[end].mtp == all[begin].mtp &&
           activation_text(all[end].activation) == kind) {
      ++end;
    }
    bool const many = end - begin > 1;
    text += fmt::format("{}{} in {}layer{} {}", text.empty() ? "" : "; ", kind,
                        all[begin].mtp ? "MTP " : "", many ? "s" : "", all[begin].layer);
    if (many) text += fmt::format(" to {}", all[end - 1].layer);
    begin = end;
  }
  return text;
}

std::string activation_text(checkpoint_description const& described) {
  bool const any = std::any_of(described.layer_list.begin(), described.layer_list.end(),
                               [](auto const& layer) { return layer.activation.has_value(); });
  std::string text = !described.activation && any ? activations_of_layers(described.layer_list)
                                                  : activation_text(described.activation);
  if (described.scheme == activation_scheme::dynamic) text += "; inputs quantised on the fly";
  return text;
}

void print_head(std::string const& folder, checkpoint_description const& described) {
  row("checkpoint", printable(folder));
  std::string model = described.model_type.empty() ? "not stated" : printable(described.model_type);
  if (!described.text_model_type.empty()) model += " / " + printable(described.text_model_type);
  row("model", model);
  std::string quantised = "not declared";
  if (!described.quant_method.empty()) {
    quantised = printable(described.quant_method) + ", by " + printable(described.quant_source);
  }
  row("quantised", quantised);
  row("dialects", described.dialects.empty() ? "none" : joined(described.dialects));
  if (!described.assumed.empty()) row("assumed", joined(described.assumed));
  row("geometry", geometry_text(described));
  row("activation", activation_text(described));
  row("files", fmt::format("{}, {}, {}", counted(described.shards, "shard"),
                           counted(described.tensors, "tensor"),
                           human_bytes(static_cast<double>(described.file_bytes))));
  row("experts",
      fmt::format("{}, {} parameters, {}", counted(std::ssize(described.layer_list), "layer"),
                  human_count(static_cast<double>(described.expert_parameters)),
                  human_bytes(static_cast<double>(described.expert_bytes))));
  row("matched",
      fmt::format("{}, {}, {} matched", counted(described.weights_found, "quantised weight"),
                  counted(described.scales_found, "scale"), described.matched));
  if (described.shared_expert_tensors > 0) {
    row("shared", fmt::format("{} tensors of shared experts, which are not part of these layers",
                              described.shared_expert_tensors));
  }
}

void print_types(checkpoint_description const& described) {
  std::vector<std::vector<std::string>> rows{{"stored as", "tensors", "bytes", ""}};
  for (stored_type const& type : described.types) {
    rows.push_back({type.name, fmt::format("{}", type.tensors), fmt::format("{}", type.bytes),
                    human_bytes(static_cast<double>(type.bytes))});
  }
  fmt::print("\n{}", table(rows));
}

/// The cells of a layer behind its number.
std::vector<std::string> cells_of(layer_description const& layer) {
  return {fmt::format("{}", layer.experts),
          fmt::format("{}", layer.hidden),
          fmt::format("{}", layer.inter),
          layer.dialect + (layer.sound        ? ""
                           : layer.activation ? " (not sound)"
                                              : " (cannot be loaded)"),
          gate_up_text(layer),
          format_text(layer.down),
          human_count(static_cast<double>(layer.parameters)),
          human_bytes(static_cast<double>(layer.stored_bytes))};
}

/// Layers in a row that are alike are one line: "3 to 60".
void print_layers(checkpoint_description const& described) {
  std::vector<std::vector<std::string>> rows{{"layers", "experts", "hidden", "inter", "dialect",
                                              "gate and up", "down", "parameters", "bytes"}};
  auto const& all = described.layer_list;
  for (std::size_t begin = 0; begin < all.size();) {
    auto cells = cells_of(all[begin]);
    std::size_t end = begin + 1;
    while (end < all.size() && all[end].mtp == all[begin].mtp &&
           all[end].layer == all[end - 1].layer + 1 && cells_of(all[end]) == cells) {
      ++end;
    }
    std::string number = fmt::format("{}", all[begin].layer);
    if (end - begin > 1) number += fmt::format(" to {}", all[end - 1].layer);
    cells.insert(cells.begin(), all[begin].mtp ? "MTP " + number : number);
    rows.push_back(cells);
    begin = end;
  }
  if (rows.size() > 1) fmt::print("\n{}", table(rows));
}

void print_limits(checkpoint_description const& described) {
  index_t past = 0;
  layer_description const* first = nullptr;
  for (layer_description const& layer : described.layer_list) {
    if (limits_text(layer).empty()) continue;
    ++past;
    if (first == nullptr) first = &layer;
  }
  if (first == nullptr) {
    fmt::print("\nEvery stack stays below 2^31 elements and 4 GiB.\n");
    return;
  }
  fmt::print(
      "\n{} of {} layers have stacks past 2^31 elements or 4 GiB, which kernels with 32-bit "
      "indices break on;\nthe first is {}: {}.\n",
      past, described.layer_list.size(), layer_text(*first), limits_text(*first));
}

void print_findings(checkpoint_description const& described, std::vector<finding> const& findings) {
  if (findings.empty()) {
    fmt::print("\nNothing wrong was found. No weight has been read: `moe64 check` does that.\n");
    return;
  }
  fmt::print("\n{}, {}\n", counted(described.errors, "error"),
             counted(described.warnings, "warning"));
  for (finding const& found : findings) {
    fmt::print("{} {}: {}\n", name(found.level), printable(found.rule), printable(found.text));
  }
  auto const shown = std::count_if(findings.begin(), findings.end(), [](auto const& found) {
    return found.level != finding_level::note;
  });
  index_t const more = described.errors + described.warnings - shown;
  if (more > 0) fmt::print("... and {} more of the same kinds\n", more);
}

}  // namespace

exit_code inspect(folder_options const& options) {
  checkpoint_reader const reader(options.folder, options.how);
  checkpoint_description const described = describe(reader);
  auto const findings = reader.findings();
  if (options.json) {
    json object;
    object["checkpoint"] = options.folder;
    object.update(to_json(described, findings));
    fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
  } else {
    print_head(options.folder, described);
    print_types(described);
    print_layers(described);
    print_limits(described);
    print_findings(described, findings);
  }
  return described.errors > 0 ? exit_code::failed : exit_code::ok;
}

}  // namespace moe64::cli
