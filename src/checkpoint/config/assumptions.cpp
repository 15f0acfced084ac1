#include "checkpoint/config/assumptions.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace moe64::checkpoint {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view expected) {
  fail(errc::invalid_argument, "[assume] {} is not understood, expected {}", quoted(text),
       expected);
}

index_t positive(std::string_view text, std::string_view digits) {
  index_t value = 0;
  auto const* const end = digits.data() + digits.size();
  auto const parsed = std::from_chars(digits.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end || value < 1) {
    refuse(text, "a positive number");
  }
  return value;
}

scale_codec scale_named(std::string_view text, std::string_view value) {
  if (value == "tensor") return scale_codec::tensor;
  if (value == "row") return scale_codec::row;
  if (value == "block") return scale_codec::blk;
  if (value == "group") return scale_codec::grp;
  if (value == "mx32") return scale_codec::mx32;
  refuse(text, "scale=tensor, row, block, group or mx32");
}

float positive_real(std::string_view text, std::string_view digits) {
  float value = 0.0F;
  auto const* const end = digits.data() + digits.size();
  auto const parsed = std::from_chars(digits.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end || !(value > 0.0F) || !std::isfinite(value)) {
    refuse(text, "a positive number of f32");
  }
  return value;
}

activation activation_named(std::string_view text, std::string_view value) {
  std::string known;
  for (int i = 0; i <= static_cast<int>(last_activation); ++i) {  // narrow-ok: an enumerator
    auto const kind = static_cast<activation>(i);
    if (name(kind) == value) return kind;
    known += (known.empty() ? "activation=" : ", ") + std::string(name(kind));
  }
  refuse(text, known);
}

/// An activation and its parameters come as assumptions of their own.
struct assumed_activation {
  std::optional<activation> kind;
  std::optional<float> limit;
  std::optional<float> alpha;

  [[nodiscard]] std::optional<activation_spec> whole() const {
    bool const limits = kind && has_limit(*kind);
    bool const scales = kind && *kind == activation::gptoss_glu;
    if (limit && !limits) refuse("limit", "activation=KIND of a kind that has a limit beside it");
    if (alpha && !scales) refuse("alpha", "activation=gptoss_glu beside it");
    if (!kind) return std::nullopt;
    if (limits != limit.has_value()) refuse(name(*kind), "limit=NUMBER beside it");
    if (scales != alpha.has_value()) refuse(name(*kind), "alpha=NUMBER beside it");
    activation_spec spec{*kind};
    if (limit) spec.limit = *limit;
    if (alpha) spec.alpha = *alpha;
    return spec;
  }
};

std::string dialect_named(std::string_view text, std::string_view value) {
  auto const table = dialect_table();
  bool const known =
      std::any_of(table.begin(), table.end(), [&](dialect const& row) { return row.id == value; });
  if (!known) refuse(text, "dialect=D1 to D31 as in the table");
  return std::string(value);
}

void read_assumption(std::string_view text, assumptions& into, assumed_activation& act) {
  auto const equals = text.find('=');
  std::string_view const key = text.substr(0, equals);
  std::string_view const value =
      equals == std::string_view::npos ? std::string_view() : text.substr(equals + 1);
  if (key == "dialect") {
    into.dialect = dialect_named(text, value);
  } else if (key == "scale") {
    into.scale = scale_named(text, value);
  } else if (key == "block") {
    auto const cross = value.find('x');
    if (cross == std::string_view::npos) refuse(text, "block=128x128");
    into.block_rows = positive(text, value.substr(0, cross));
    into.block_cols = positive(text, value.substr(cross + 1));
  } else if (key == "group") {
    into.group = positive(text, value);
  } else if (key == "orientation") {
    if (value != "rows" && value != "transposed") refuse(text, "orientation=rows or transposed");
    into.transposed = value == "transposed";
  } else if (key == "gate_up") {
    if (value != "concatenated" && value != "interleaved") {
      refuse(text, "gate_up=concatenated or interleaved");
    }
    into.gate_up =
        value == "interleaved" ? gate_up_layout::interleaved : gate_up_layout::concatenated;
  } else if (key == "grid") {
    if (value != "fused" && value != "halves") refuse(text, "grid=fused or halves");
    into.grid = value == "fused" ? fused_grid::fused : fused_grid::halves;
  } else if (key == "hidden") {
    into.hidden = positive(text, value);
  } else if (key == "inter") {
    into.inter = positive(text, value);
  } else if (key == "experts") {
    into.experts = positive(text, value);
  } else if (key == "activation") {
    act.kind = activation_named(text, value);
  } else if (key == "limit") {
    act.limit = positive_real(text, value);
  } else if (key == "alpha") {
    act.alpha = positive_real(text, value);
  } else if (key == "ignore") {
    if (value.empty()) refuse(text, "ignore=KEY, a key of a config");
    into.ignored.emplace_back(value);
  } else {
    refuse(text,
           "dialect, scale, block, group, orientation, gate_up, grid, hidden, inter, experts, "
           "activation, limit, alpha or ignore");
  }
}

}  // namespace

assumptions parse_assumptions(std::span<std::string const> texts) {
  assumptions result;
  assumed_activation act;
  for (std::string const& text : texts) {
    read_assumption(text, result, act);
    result.texts.push_back(text);
  }
  result.activation = act.whole();
  return result;
}

}  // namespace moe64::checkpoint
