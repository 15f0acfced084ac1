#include "checkpoint/dialect/dialect.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

namespace moe64::checkpoint {
namespace {

/// What decides the numbers. Rows that agree in it are the same dialect under several ids.
auto meaning(dialect const& row, bool scale_is_assumed) {
  // a power of two is one kind of number: the arithmetic is that of blk
  scale_codec const scales = row.scales == scale_codec::blk_pow2 ? scale_codec::blk : row.scales;
  bool const stated = scale_is_assumed;
  return std::make_tuple(row.values, row.scale, row.global, stated ? scale_codec::none : scales,
                         stated ? block_rule::none : row.block);
}

std::string candidate(dialect const& row) {
  return fmt::format("{} ({} values, {} scales '{}')", row.id, name(row.values), name(row.scales),
                     name(row.scale));
}

expert_rule declared_experts(quant_declaration const& quant) {
  if (quant.routed_experts_quant_method && quant.routed_experts_quant_method->value == "mxfp4") {
    return expert_rule::mxfp4;
  }
  if (quant.expert_dtype && quant.expert_dtype->value == "fp4") return expert_rule::fp4;
  if (quant.expert_dtype && quant.expert_dtype->value == "fp8") return expert_rule::fp8;
  return expert_rule::same;
}

}  // namespace

dialect_choice const& dialect_chooser::choose(dialect_query const& query) {
  for (auto const& [known, choice] : known_) {
    if (known == query) return choice;
  }
  return known_.emplace_back(query, find(query)).second;
}

bool dialect_chooser::declared(dialect const& row, dialect_query const& query) const {
  quant_declaration const& quant = config_->quant;
  bool const mistral = row.method == quant_method::mistral && quant.mistral_native;
  if (row.method != quant.method && !mistral) return false;
  if (row.scheme != weight_scheme::unstated && !mistral && row.scheme != query.scheme->kind) {
    return false;
  }
  bool const ue8m0 = quant.scale_fmt && quant.scale_fmt->value == "ue8m0";
  if (row.scale_format == scale_format_rule::ue8m0 && !ue8m0) return false;
  if (row.scale_format == scale_format_rule::not_ue8m0 && ue8m0) return false;
  if (!query.expert_module) {
    return row.experts == expert_rule::same || row.experts == expert_rule::fp8;
  }
  expert_rule const experts = declared_experts(quant);
  return row.experts == experts ||
         (row.experts == expert_rule::same && experts == expert_rule::fp8);
}

/// Why tensors that are stored like this are not of that row; empty when they are.
std::string dialect_chooser::mismatch(dialect const& row, dialect_query const& query) const {
  if (query.expert_module ? !row.keys.contains(query.schema) : !row.dense_keys) {
    return fmt::format("{} is not named like {}", row.id,
                       query.expert_module ? name(query.schema) : "a module beside the experts");
  }
  if (!query.expert_module && query.packed != row.keys.contains(key_schema::mlp_proj_packed)) {
    return fmt::format("{} {} weight_packed", row.id, query.packed ? "has no" : "has");
  }
  if (!row.value_types.contains(query.type)) {
    return fmt::format("{} does not store values as {}", row.id, name(query.type));
  }
  if (row.scale != query.scale) {
    return fmt::format("{} has its scales in '{}'", row.id, name(row.scale));
  }
  return {};
}

int dialect_chooser::rank(dialect const& row) const {
  if (!row.model_types.empty()) return config_->is_one_of(row.model_types) ? 0 : 3;
  if (row.id != "D30") return 2;
  bool const saved = config_->transformers && *config_->transformers >= library_version{5, 4};
  return saved ? 1 : 4;
}

dialect_choice dialect_chooser::find(dialect_query const& query) const {
  quant_declaration const& quant = config_->quant;
  std::vector<dialect const*> fitting;
  std::string reasons;
  index_t named = 0;
  for (dialect const& row : dialect_table()) {
    bool const wanted = assumed_->dialect ? row.id == *assumed_->dialect
                                          : !quant.declared() || declared(row, query);
    if (!wanted) continue;
    std::string const why = mismatch(row, query);
    if (why.empty()) {
      fitting.push_back(&row);
    } else if (quant.declared() && named++ < 6) {
      reasons += (reasons.empty() ? "" : "; ") + why;
    }
  }
  std::stable_sort(fitting.begin(), fitting.end(), [&](dialect const* left, dialect const* right) {
    return rank(*left) < rank(*right);
  });
  bool const assumes = assumed_->scale.has_value();
  if (assumes) {
    // a row of that very codec also knows its block
    std::stable_partition(fitting.begin(), fitting.end(), [&](dialect const* row) {
      return row->scales == *assumed_->scale && row->global == tensor_part::unknown;
    });
  }
  std::string candidates;
  bool ambiguous = false;
  for (dialect const* const row : fitting) {
    bool const repeated = meaning(*row, assumes) == meaning(*fitting.front(), assumes);
    ambiguous = ambiguous || !repeated;
    if (row == fitting.front() || !repeated) {
      candidates += (candidates.empty() ? "" : ", ") + candidate(*row);
    }
  }
  bool const stated = quant.declared() || assumed_->dialect || assumes;
  if (!fitting.empty() && !ambiguous && stated) return {fitting.front(), {}};
  if (fitting.empty()) {
    std::string const what = quant.declared()
                                 ? fmt::format("the declaration '{}' ({}) has no dialect",
                                               query.scheme->spelling, quant.method_text)
                                 : std::string("no dialect");
    return {nullptr, fmt::format("{} with {} values{}{}{}", what, name(query.type),
                                 query.packed ? " in weight_packed" : "",
                                 reasons.empty() ? "" : ": ", reasons)};
  }
  return {nullptr, fmt::format("{}; candidates: {}; state one with an assumption",
                               quant.declared() ? "more than one dialect fits"
                                                : "nothing declares how it is quantised",
                               candidates)};
}

std::optional<stack_orientation> orientation_of(key_schema schema, model_config const& config,
                                                assumptions const& assumed, std::string& refusal) {
  stack_orientation result;
  if (assumed.gate_up) result.gate_up = *assumed.gate_up;
  if (assumed.transposed) result.transposed = *assumed.transposed;
  bool const fused = schema == key_schema::mlp_stack || schema == key_schema::feed_forward_stack;
  bool const gpt_oss = config.is_type("gpt_oss");
  bool const alternates =
      schema == key_schema::mlp_stack_blocks || schema == key_schema::mlp_stack_w13;
  if (!assumed.gate_up && (alternates || (schema == key_schema::mlp_stack && gpt_oss))) {
    result.gate_up = gate_up_layout::interleaved;
  }
  if (assumed.transposed || !fused) return result;
  if (schema == key_schema::feed_forward_stack || gpt_oss) {
    result.transposed = true;
    return result;
  }
  bool const since_5 = config.transformers && *config.transformers >= library_version{5, 0};
  if (config.is_type("qwen3_vl_moe") && !since_5) {
    result.transposed = true;
    return result;
  }
  for (std::string_view const type : {"qwen3_5_moe", "qwen3_6_moe", "qwen3_8_moe"}) {
    if (config.is_type(type)) return result;
  }
  refusal = fmt::format(
      "the model type '{}'{} does not tell whether stacks are [experts, out, in] or "
      "[experts, in, out]; state orientation=rows or orientation=transposed",
      config.model_type, since_5 ? " as saved by Transformers 5" : "");
  return std::nullopt;
}

}  // namespace moe64::checkpoint
