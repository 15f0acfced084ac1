#include "checkpoint/merge/adapter_config.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace moe64::checkpoint {
namespace {

constexpr index_t largest_rank = 1 << 20;

/// Read below, or without a say in what the adapter computes once it is trained.
constexpr std::array<std::string_view, 30> harmless = {
    "peft_type",         "r",
    "lora_alpha",        "use_rslora",
    "rank_pattern",      "alpha_pattern",
    "auto_mapping",      "target_parameters",
    "lora_B_layout",     "unsloth_fused_expert_lora",
    "init_lora_weights", "base_model_name_or_path",
    "revision",          "task_type",
    "inference_mode",    "target_modules",
    "exclude_modules",   "layers_to_transform",
    "layers_pattern",    "lora_dropout",
    "peft_version",      "qalora_group_size",
    "megatron_core",     "loftq_config",
    "eva_config",        "corda_config",
    "lora_ga_config",    "runtime_config",
    "velora_config",     "parent_library"};

struct refusal {
  std::string_view key;
  std::string_view why;
};
/// Known keys that change what the adapter computes.
constexpr std::array<refusal, 15> refusals = {{
    {"use_dora", "DoRA scales every output by a trained magnitude"},
    {"bias", "the adapter has biases of its own"},
    {"lora_bias", "B has a bias"},
    {"modules_to_save", "the adapter replaces whole modules"},
    {"trainable_token_indices", "the adapter replaces rows of the embedding"},
    {"use_qalora", "QALoRA averages groups of inputs before A"},
    {"alora_invocation_tokens", "the adapter is switched on by tokens"},
    {"layer_replication", "the adapter is of a model with repeated layers"},
    {"fan_in_fan_out", "the factors are of weights stored as [in, out]"},
    {"use_bdlora", "the factors are block-diagonal"},
    {"arrow_config", "the adapter is routed"},
    {"kasa_config", "the factors have singular values between them"},
    {"monteclora_config", "the factors are random"},
    {"megatron_config", "the adapter is of layers of Megatron"},
    {"ensure_weight_tying", "the adapter is tied to another module"},
}};

/// What a key says that switches nothing on.
bool is_neutral(json_value const& value) {
  switch (value.kind()) {
    case json_kind::null:
      return true;
    case json_kind::boolean:
      return !value.boolean();
    case json_kind::text:
      return value.text().empty() || value.text() == "none";
    case json_kind::array:
    case json_kind::object:
      return value.size() == 0;
    default:
      return false;
  }
}

std::string shown(json_value const& value) {
  switch (value.kind()) {
    case json_kind::boolean:
      return value.boolean() ? "true" : "false";
    case json_kind::text:
      return quoted(value.text());
    case json_kind::integer:
    case json_kind::real:
      return std::string(value.number_text());
    default:
      return fmt::format("{} of {}", name(value.kind()), value.size());
  }
}

void refuse_unsupported(json_value const& root) {
  for (json_value const& member : root) {
    std::string_view const key = member.key();
    if (std::find(harmless.begin(), harmless.end(), key) != harmless.end() || is_neutral(member)) {
      continue;
    }
    auto const known = std::find_if(refusals.begin(), refusals.end(),
                                    [&](refusal const& entry) { return entry.key == key; });
    fail(errc::unsupported, "[merge] {} is {}: {}, which is not supported", member.path(),
         shown(member),
         known != refusals.end() ? known->why
                                 : "a key that is not known, and that may mean anything");
  }
}

/// Initialisations that leave the weights of the base alone.
void refuse_changed_base(json_value const& root) {
  json_value const* const made = root.find("init_lora_weights");
  if (made == nullptr || !made->is(json_kind::text)) return;
  std::string_view const word = made->text();
  for (std::string_view const known : {"gaussian", "eva", "orthogonal"}) {
    if (word == known) return;
  }
  fail(
      errc::unsupported,
      "[merge] {} is {}: such an adapter belongs to weights that its initialisation changed, not "
      "to "
      "those of the base; save it as plain LoRA first (path_initial_model_for_weight_conversion of "
      "PEFT's save_pretrained)",
      made->path(), quoted(word));
}

/// Python's json writes NaN and Infinity, and a scaling made of one would be in every weight.
double finite(json_value const& value) {
  if (std::isfinite(value.real())) return value.real();
  fail(errc::malformed_file, "[merge] {} is {}, expected a finite number", value.path(),
       value.number_text());
}

bool truth(json_value const& root, std::string_view key) {
  json_value const* const value = root.find(key);
  return value != nullptr && !value->is(json_kind::null) && value->boolean();
}

}  // namespace

adapter_config adapter_config::read(json_value const& root) {
  if (!root.is(json_kind::object)) {
    fail(errc::malformed_file, "[merge] {} is {}, not an object", root.path(), name(root.kind()));
  }
  std::string_view const kind = root.at("peft_type").text();
  if (kind != "LORA") {
    fail(errc::unsupported, "[merge] {} is {}: only adapters of kind LORA can be merged",
         root.at("peft_type").path(), quoted(kind));
  }
  refuse_unsupported(root);
  refuse_changed_base(root);
  adapter_config config;
  config.rank_ = root.at("r").integer();
  if (config.rank_ < 1 || config.rank_ > largest_rank) {
    fail(errc::malformed_file, "[merge] {} is {}", root.at("r").path(), config.rank_);
  }
  config.alpha_ = finite(root.at("lora_alpha"));
  config.by_root_ = truth(root, "use_rslora");
  config.ranks_ = exceptions_in(root.find("rank_pattern"));
  for (exception const& entry : config.ranks_) {
    if (entry.value >= 1 && entry.value <= largest_rank && entry.value == std::floor(entry.value)) {
      continue;
    }
    fail(errc::malformed_file, "[merge] {} has the rank {}", root.at("rank_pattern").path(),
         entry.value);
  }
  config.alphas_ = exceptions_in(root.find("alpha_pattern"));
  if (json_value const* const parameters = root.find("target_parameters");
      parameters != nullptr && !parameters->is(json_kind::null)) {
    for (json_value const& entry : *parameters) config.parameters_.emplace_back(entry.text());
  }
  config.layout_ = read_layout_statement(root);
  return config;
}

std::vector<adapter_config::exception> adapter_config::exceptions_in(json_value const* table) {
  std::vector<exception> result;
  if (table == nullptr || table->is(json_kind::null)) return result;
  for (json_value const& entry : *table) {
    // a key is a regular expression for the end of a dotted path, the first that matches counts
    result.push_back(
        {name_pattern::regex(fmt::format("(.*\\.)?({})$", entry.key())), finite(entry)});
  }
  return result;
}

double adapter_config::chosen(std::vector<exception> const& from, std::string_view path,
                              double otherwise) {
  for (exception const& entry : from) {
    if (entry.names.matches(path)) return entry.value;
  }
  return otherwise;
}

index_t adapter_config::rank_of(std::string_view path) const {
  return static_cast<index_t>(chosen(ranks_, path, static_cast<double>(rank_)));
}

double adapter_config::scaling_of(std::string_view path) const {
  double const alpha = chosen(alphas_, path, alpha_);
  auto const rank = static_cast<double>(rank_of(path));
  return by_root_ ? alpha / std::sqrt(rank) : alpha / rank;
}

bool adapter_config::targets_parameter(std::string_view path) const {
  return std::any_of(parameters_.begin(), parameters_.end(), [&](std::string const& target) {
    if (path == target) return true;
    return path.ends_with(target) && path.size() > target.size() &&
           path[path.size() - target.size() - 1] == '.';
  });
}

}  // namespace moe64::checkpoint
