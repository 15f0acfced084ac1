#include "moe64/problem.hpp"

#include "core/fail.hpp"

#include <array>
#include <charconv>
#include <set>
#include <utility>

namespace moe64 {
namespace {

template <class Value>
using word = std::pair<Value, std::string_view>;

constexpr word<operation> operations[] = {
    {operation::layer, "layer"},
    {operation::quantize, "quantize"},
    {operation::dequantize, "dequantize"},
    {operation::route, "route"},
    {operation::plan, "plan"},
    {operation::gather, "gather"},
    {operation::grouped_gemm, "grouped_gemm"},
    {operation::grouped_gemm_wgrad, "grouped_gemm_wgrad"},
    {operation::activate, "activate"},
    {operation::combine, "combine"},
};
constexpr word<activation> activations[] = {
    {activation::silu_glu, "silu_glu"},
    {activation::gelu_glu, "gelu_glu"},
    {activation::gelu_tanh_glu, "gelu_tanh_glu"},
    {activation::gptoss_glu, "gptoss_glu"},
    {activation::clamped_silu_glu, "clamped_silu_glu"},
    {activation::silu, "silu"},
    {activation::gelu, "gelu"},
    {activation::relu2, "relu2"},
    {activation::step_glu, "step_glu"},
};
constexpr word<compute_mode> modes[] = {
    {compute_mode::automatic, "auto"},
    {compute_mode::w8a16, "w8a16"},
    {compute_mode::w8a8, "w8a8"},
    {compute_mode::native, "native"},
};
constexpr word<activation_scheme> schemes[] = {
    {activation_scheme::unstated, "unstated"},
    {activation_scheme::dynamic, "dynamic"},
};
constexpr word<weight_format> formats[] = {
    {weight_format::f32, "f32"},   {weight_format::bf16, "bf16"},   {weight_format::f16, "f16"},
    {weight_format::e4m3, "e4m3"}, {weight_format::e5m2, "e5m2"},   {weight_format::int8, "int8"},
    {weight_format::int4, "int4"}, {weight_format::mxfp4, "mxfp4"}, {weight_format::nvfp4, "nvfp4"},
};
constexpr word<gate_up_layout> layouts[] = {
    {gate_up_layout::concatenated, "concatenated"},
    {gate_up_layout::interleaved, "interleaved"},
};
constexpr word<weight_placement> placements[] = {
    {weight_placement::output, "output"},
    {weight_placement::input, "input"},
};
constexpr word<bool> switches[] = {{false, "0"}, {true, "1"}};

template <class Value, std::size_t Count>
std::string_view name_in(word<Value> const (&words)[Count], Value value) noexcept {
  for (auto const& [candidate, text] : words) {
    if (candidate == value) return text;
  }
  return "unknown";
}

[[noreturn]] void malformed(std::string_view key, std::string_view text,
                            std::string_view expected) {
  fail(errc::invalid_argument, "[problem] {}={}: expected {}", key, text, expected);
}

template <class Value, std::size_t Count>
Value parse_word(std::string_view key, std::string_view text, word<Value> const (&words)[Count]) {
  std::string expected = "one of";
  for (auto const& [value, spelling] : words) {
    if (spelling == text) return value;
    expected += fmt::format(" {}", spelling);
  }
  malformed(key, text, expected);
}

template <class Number>
Number parse_number(std::string_view key, std::string_view text, Number low,
                    std::string_view expected, std::size_t skipped = 0) {
  Number value{};
  char const* const last = text.data() + text.size();
  auto const [end, status] = std::from_chars(text.data() + skipped, last, value);
  if (status == std::errc::result_out_of_range) {
    malformed(key, text, fmt::format("{}: that is too large or too small a number", expected));
  }
  if (status != std::errc{} || end != last || value < low) malformed(key, text, expected);
  return value;
}

index_t parse_count(std::string_view key, std::string_view text, index_t low) {
  return parse_number<index_t>(key, text, low, low == 0 ? "a count" : "a count of at least 1");
}

dtype parse_type(std::string_view key, std::string_view text, bool (*allowed)(dtype) noexcept) {
  auto const type = parse_dtype(text);
  if (type && allowed(*type)) return *type;
  std::string expected = "one of";
  for (int i = 0; i < dtype_count; ++i) {
    auto const candidate = static_cast<dtype>(i);
    if (allowed(candidate)) expected += fmt::format(" {}", name(candidate));
  }
  malformed(key, text, expected);
}

void parse_routing(problem& p, std::string_view text) {
  if (text == "uniform") {
    p.routing = routing_kind::uniform;
  } else if (text == "zipf") {
    p.routing = routing_kind::zipf;
  } else if (text == "one_expert") {
    p.routing = routing_kind::one_expert;
  } else if (text.starts_with("sentinel:")) {
    p.routing = routing_kind::sentinel;
    p.sentinel_share = parse_number<double>("routing", text, 0.0, "sentinel:SHARE in 0..1", 9);
    if (!(p.sentinel_share <= 1.0)) malformed("routing", text, "sentinel:SHARE in 0..1");
  } else {
    malformed("routing", text, "one of uniform zipf one_expert sentinel:SHARE");
  }
}

std::string print_routing(problem const& p) {
  switch (p.routing) {
    case routing_kind::uniform:
      return "uniform";
    case routing_kind::zipf:
      return "zipf";
    case routing_kind::one_expert:
      return "one_expert";
    case routing_kind::sentinel:
      return fmt::format("sentinel:{}", p.sentinel_share);
  }
  return "unknown";
}

moe64::device parse_device(std::string_view text) {
  if (text == "cpu") return device::cpu();
  if (!text.starts_with("cuda:")) malformed("device", text, "cpu or cuda:N");
  return device::cuda(parse_number<std::int16_t>("device", text, 0, "cpu or cuda:N", 5));
}

granularity parse_scale(std::string_view text) {
  auto const scale = parse_granularity(text);
  if (!scale) malformed("scale", text, "one of none tensor row block:RxC group:G");
  return *scale;
}

/// One key: how it is read into a problem and printed from one.
struct key {
  std::string_view name;
  void (*parse)(problem& p, std::string_view name, std::string_view text);
  std::string (*print)(problem const& p);
};

template <index_t problem::*Member, index_t Low>
constexpr key count_key(std::string_view name) {
  return {name,
          [](problem& p, std::string_view key_name, std::string_view text) {
            p.*Member = parse_count(key_name, text, Low);
          },
          [](problem const& p) { return std::to_string(p.*Member); }};
}

template <auto Member, auto const& Words>
constexpr key word_key(std::string_view name) {
  return {name,
          [](problem& p, std::string_view key_name, std::string_view text) {
            p.*Member = parse_word(key_name, text, Words);
          },
          [](problem const& p) { return std::string(name_in(Words, p.*Member)); }};
}

template <dtype problem::*Member, bool (*Allowed)(dtype) noexcept>
constexpr key type_key(std::string_view name) {
  return {name,
          [](problem& p, std::string_view key_name, std::string_view text) {
            p.*Member = parse_type(key_name, text, Allowed);
          },
          [](problem const& p) { return std::string(moe64::name(p.*Member)); }};
}

constexpr key keys[] = {
    word_key<&problem::op, operations>("op"),
    count_key<&problem::tokens, 0>("tokens"),
    count_key<&problem::hidden, 1>("hidden"),
    count_key<&problem::inter, 1>("inter"),
    count_key<&problem::experts, 1>("experts"),
    count_key<&problem::top_k, 1>("top_k"),
    word_key<&problem::weight, formats>("weight"),
    {"scale",
     [](problem& p, std::string_view, std::string_view text) { p.scale = parse_scale(text); },
     [](problem const& p) { return to_string(p.scale); }},
    type_key<&problem::scale_dtype, is_scale>("scale_dtype"),
    {"act",
     [](problem& p, std::string_view name, std::string_view text) {
       p.act.kind = parse_word(name, text, activations);
     },
     [](problem const& p) { return std::string(name_in(activations, p.act.kind)); }},
    word_key<&problem::mode, modes>("mode"),
    word_key<&problem::scheme, schemes>("scheme"),
    type_key<&problem::io, is_float>("io"),
    word_key<&problem::layout, layouts>("layout"),
    {"routing", [](problem& p, std::string_view, std::string_view text) { parse_routing(p, text); },
     print_routing},
    word_key<&problem::weight_on, placements>("weight_on"),
    count_key<&problem::lora, 0>("lora"),
    word_key<&problem::bias, switches>("bias"),
    word_key<&problem::backward, switches>("backward"),
    word_key<&problem::quantized, switches>("quantized"),
    {"device",
     [](problem& p, std::string_view, std::string_view text) { p.device = parse_device(text); },
     [](problem const& p) { return to_string(p.device); }},
    {"seed",
     [](problem& p, std::string_view name, std::string_view text) {
       p.seed = parse_number<std::uint64_t>(name, text, 0, "a number");
     },
     [](problem const& p) { return std::to_string(p.seed); }},
    {"impl", [](problem& p, std::string_view, std::string_view text) { p.impl = text; },
     [](problem const& p) { return p.impl; }},
};

/// The scale that a weight format has when the line does not say otherwise.
void set_format_defaults(problem& p) {
  switch (p.weight) {
    case weight_format::f32:
    case weight_format::bf16:
    case weight_format::f16:
      p.scale = granularity::none();
      break;
    case weight_format::int4:
      p.scale = granularity::group(32);
      break;
    case weight_format::mxfp4:
      p.scale = granularity::group(32);
      p.scale_dtype = dtype::e8m0;
      break;
    case weight_format::nvfp4:
      p.scale = granularity::group(16);
      p.scale_dtype = dtype::e4m3;
      break;
    case weight_format::e4m3:
    case weight_format::e5m2:
    case weight_format::int8:
      break;
  }
}

void check_format(problem const& p) {
  problem implied = p;
  set_format_defaults(implied);
  bool const plain = !is_quantized(value_type(p.weight));
  bool const fixed = p.weight == weight_format::mxfp4 || p.weight == weight_format::nvfp4;
  if ((plain || fixed) && !(p.scale == implied.scale)) {
    fail(errc::invalid_argument, "[problem] weight={} has scale={}, not scale={}",
         name_in(formats, p.weight), to_string(implied.scale), to_string(p.scale));
  }
  if (!plain && p.scale.kind == scale_kind::none) {
    fail(errc::missing_scale, "[problem] weight={} needs a scale", name_in(formats, p.weight));
  }
  if (fixed && p.scale_dtype != implied.scale_dtype) {
    fail(errc::invalid_argument, "[problem] weight={} has scale_dtype={}, not scale_dtype={}",
         name_in(formats, p.weight), name(implied.scale_dtype), name(p.scale_dtype));
  }
}

constexpr std::string_view blanks = " \t\r\n";

/// The value of `name` in the words of a line, or empty.
std::string_view find_value(std::string_view line, std::string_view name) {
  std::string const pattern = fmt::format("{}=", name);
  for (std::size_t at = line.find(pattern); at != std::string_view::npos;
       at = line.find(pattern, at + 1)) {
    if (at != 0 && blanks.find(line[at - 1]) == std::string_view::npos) continue;
    auto const begin = at + pattern.size();
    return line.substr(begin, line.find_first_of(blanks, begin) - begin);
  }
  return {};
}

}  // namespace

std::string_view name(operation op) noexcept { return name_in(operations, op); }
std::string_view name(activation kind) noexcept { return name_in(activations, kind); }
std::string_view name(compute_mode mode) noexcept { return name_in(modes, mode); }

weight_format format_of(dtype value, dtype scale) noexcept {
  switch (value) {
    case dtype::f32:
      return weight_format::f32;
    case dtype::bf16:
      return weight_format::bf16;
    case dtype::f16:
      return weight_format::f16;
    case dtype::e5m2:
      return weight_format::e5m2;
    case dtype::int8:
      return weight_format::int8;
    case dtype::int4:
      return weight_format::int4;
    case dtype::fp4:
      return scale == dtype::e4m3 ? weight_format::nvfp4 : weight_format::mxfp4;
    default:
      return weight_format::e4m3;
  }
}

dtype value_type(weight_format format) noexcept {
  switch (format) {
    case weight_format::f32:
      return dtype::f32;
    case weight_format::bf16:
      return dtype::bf16;
    case weight_format::f16:
      return dtype::f16;
    case weight_format::e4m3:
      return dtype::e4m3;
    case weight_format::e5m2:
      return dtype::e5m2;
    case weight_format::int8:
      return dtype::int8;
    case weight_format::int4:
      return dtype::int4;
    case weight_format::mxfp4:
    case weight_format::nvfp4:
      return dtype::fp4;
  }
  return dtype::f32;
}

problem parse_problem(std::string_view line) {
  problem p;
  std::string_view const format = find_value(line, "weight");
  if (!format.empty()) p.weight = parse_word("weight", format, formats);
  set_format_defaults(p);
  std::set<std::string_view> seen;
  for (std::size_t at = line.find_first_not_of(blanks); at != std::string_view::npos;
       at = line.find_first_not_of(blanks, at)) {
    auto const end = std::min(line.find_first_of(blanks, at), line.size());
    std::string_view const text = line.substr(at, end - at);
    at = end;
    auto const equals = text.find('=');
    std::string_view const word_name = text.substr(0, equals);
    key const* known = nullptr;
    for (key const& candidate : keys) {
      if (candidate.name == word_name) known = &candidate;
    }
    if (known == nullptr || equals == std::string_view::npos) {
      std::string names;
      for (key const& candidate : keys) names += fmt::format(" {}", candidate.name);
      fail(errc::invalid_argument, "[problem] '{}' is not key=value with one of the keys{}", text,
           names);
    }
    if (!seen.insert(word_name).second) {
      fail(errc::invalid_argument, "[problem] {} is given twice", word_name);
    }
    known->parse(p, word_name, text.substr(equals + 1));
  }
  check_format(p);
  return p;
}

std::string to_string(problem const& p) {
  problem defaults;
  defaults.weight = p.weight;
  set_format_defaults(defaults);
  defaults.weight = weight_format::e4m3;
  std::string line;
  for (key const& candidate : keys) {
    std::string const value = candidate.print(p);
    if (value == candidate.print(defaults)) continue;
    line += fmt::format("{}{}={}", line.empty() ? "" : " ", candidate.name, value);
  }
  return line;
}

}  // namespace moe64
