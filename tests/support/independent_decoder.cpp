#include "support/independent_decoder.hpp"

#include "nlohmann/json.hpp"

#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>

namespace moe64::test {

// One line per dialect: where its tensors are named, how they are packed, what a scale covers.
//   names    (%): the expert's number; two forms of projection names: proj (gate_proj, up_proj,
//            down_proj), w (w1, w3, w2); fused ones are gate_up and down
//   values   e4m3 | fp4 (two per byte, even column low) | int4 (eight per word, minus 8)
//   scales   block (128 x 128) | tensor | row | g32 | g16
//   stack    - | out_in | in_out | interleaved: all experts in one tensor
struct independent_decoder::rule {
  char const* id;
  char const* prefix;
  char const* projections;
  char const* value_suffix;
  char const* scale_suffix;
  char const* global;  ///< suffix with '*' or '/' in front
  char const* values;
  char const* scales;
  char const* stack;
};

namespace {

using rule = independent_decoder::rule;

constexpr char const* k1 = "model.layers.0.mlp.experts.%.";
constexpr char const* k2 = "model.layers.0.block_sparse_moe.experts.%.";
constexpr char const* k3 = "layers.0.ffn.experts.%.";
constexpr char const* k6 = "language_model.model.layers.0.feed_forward.experts.%.";
constexpr char const* k7 = "language_model.model.layers.0.feed_forward.experts.";

constexpr rule rules[] = {
    {"D1", k1, "proj", ".weight", ".weight_scale_inv", "", "e4m3", "block", "-"},
    {"D2", k1, "proj", ".weight", ".weight_scale_inv", "", "e4m3", "block", "-"},
    {"D3", k3, "w", ".weight", ".scale", "", "e4m3", "block", "-"},
    {"D4", k3, "w", ".weight", ".scale", "", "fp4", "g32", "-"},
    {"D5", k1, "proj", ".weight", ".weight_scale", "", "e4m3", "row", "-"},
    {"D6", k1, "proj", ".weight", ".weight_scale", "", "e4m3", "row", "-"},
    {"D7", k1, "proj", ".weight", ".weight_scale_inv", "", "e4m3", "block", "-"},
    {"D8", k1, "proj", ".weight", ".weight_scale_inv", "", "e4m3", "block", "-"},
    {"D9", "model.language_model.layers.0.mlp.experts.%.", "proj", ".weight", ".weight_scale_inv",
     "", "e4m3", "block", "-"},
    {"D10", "model.language_model.layers.0.mlp.experts.", "fused", "", "_scale_inv", "", "e4m3",
     "block", "in_out"},
    {"D11", k2, "w", ".weight", ".weight_scale_inv", "", "e4m3", "block", "-"},
    {"D12", "language_model.model.layers.0.block_sparse_moe.experts.%.", "w", ".weight",
     ".weight_scale_inv", "", "e4m3", "g32", "-"},
    {"D13", k1, "proj", ".weight_packed", ".weight_scale", "", "int4", "g32", "-"},
    {"D14", "model.layers.0.mlp.experts.", "fused", "_blocks", "_scales", "", "fp4", "g32",
     "interleaved"},
    {"D15", k6, "proj", ".weight", ".weight_scale", "", "e4m3", "row", "-"},
    {"D16", k7, "fused", "", "_scale", "", "e4m3", "row", "in_out"},
    {"D17", k7, "fused", "", "_weight_scale", "", "e4m3", "tensor", "in_out"},
    {"D18", k2, "w", ".weight", ".weight_scale", "", "e4m3", "tensor", "-"},
    {"D18b", k2, "w", ".weight", ".weight_scale", "", "e4m3", "tensor", "-"},
    {"D19", k1, "proj", ".weight", ".weight_scale", "", "e4m3", "block", "-"},
    {"D20", k1, "proj", ".weight", ".weight_scale", "", "e4m3", "tensor", "-"},
    {"D21", k1, "proj", ".weight", ".weight_scale", "", "e4m3", "row", "-"},
    {"D22", k1, "proj", ".weight", ".weight_scale", "", "e4m3", "block", "-"},
    {"D22b", "mtp.layers.0.mlp.experts.%.", "proj", ".weight", ".weight_scale_inv", "", "e4m3",
     "block", "-"},
    {"D23", k1, "proj", ".weight", ".weight_scale", "*.weight_scale_2", "fp4", "g16", "-"},
    {"D24", k1, "proj", ".weight_packed", ".weight_scale", "/.weight_global_scale", "fp4", "g16",
     "-"},
    {"D25a", k1, "proj", ".weight_packed", ".weight_scale", "", "fp4", "g32", "-"},
    {"D25b", k1, "proj", ".weight", ".weight_scale", "", "e4m3", "g32", "-"},
    {"D26", k1, "proj", ".weight", ".weight_scale_inv", "", "fp4", "g32", "-"},
    {"D27", "model.layers.0.moe.", "proj", ".weight", ".weight_scale_inv", "", "e4m3", "block",
     "out_in"},
    {"D28", "model.layers.0.block_sparse_moe.", "linear", ".weight", ".weight_scale", "", "e4m3",
     "row", "out_in"},
    {"D29", "layers.0.experts.%.", "w", ".weight", ".qscale_weight", "", "e4m3", "tensor", "-"},
    {"D29b", k1, "proj", ".weight", ".weight_scale_inv", "", "e4m3", "tensor", "-"},
    {"D30", k1, "proj", ".weight", ".weight_scale_inv", "", "e4m3", "block", "-"},
    {"D31", k1, "proj", ".weight", ".weight_scale_inv", "", "e4m3", "block", "-"},
};

// The matrices of every case.
constexpr index_t hidden = 320;
constexpr index_t inter = 192;

std::uint32_t word(std::vector<std::uint8_t> const& bytes, index_t at, index_t width) {
  std::uint32_t result = 0;
  for (index_t i = width - 1; i >= 0; --i) {
    result = result << 8 | bytes.at(static_cast<std::size_t>(at * width + i));
  }
  return result;
}

float e4m3(std::uint32_t code) {
  if ((code & 0x7fU) == 0x7fU) return std::numeric_limits<float>::quiet_NaN();
  auto const exponent = static_cast<int>((code >> 3) & 0xfU);
  auto const mantissa = static_cast<float>(code & 7U);
  float const size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8.0F + mantissa, exponent - 10);
  return (code & 0x80U) != 0 ? -size : size;
}

float half(std::uint32_t code) {
  auto const exponent = static_cast<int>((code >> 10) & 0x1fU);
  auto const mantissa = static_cast<float>(code & 0x3ffU);
  float size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024.0F + mantissa, exponent - 25);
  if (exponent == 31) {
    size = mantissa == 0.0F ? std::numeric_limits<float>::infinity()
                            : std::numeric_limits<float>::quiet_NaN();
  }
  return (code & 0x8000U) != 0 ? -size : size;
}

/// Element `at` of a tensor that holds scales or biases; bytes without a float type are exponents.
float stored(independent_decoder::tensor const& from, index_t at) {
  if (from.type == "F32") return std::bit_cast<float>(word(from.bytes, at, 4));
  if (from.type == "BF16") return std::bit_cast<float>(word(from.bytes, at, 2) << 16);
  if (from.type == "F16") return half(word(from.bytes, at, 2));
  if (from.type == "F8_E4M3") return e4m3(word(from.bytes, at, 1));
  if (from.type != "U8" && from.type != "F8_E8M0") throw std::invalid_argument(from.type);
  auto const exponent = static_cast<int>(word(from.bytes, at, 1));
  return exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                         : std::ldexp(1.0F, exponent - 127);
}

index_t blocks(index_t count) { return (count + 127) / 128; }

bool is(char const* left, std::string_view right) { return left == right; }

}  // namespace

independent_decoder::independent_decoder(std::filesystem::path const& folder,
                                         std::string const& dialect)
    : rule_(nullptr) {
  for (rule const& candidate : rules) {
    if (candidate.id == dialect) rule_ = &candidate;
  }
  if (rule_ == nullptr) throw std::invalid_argument("no rule for " + dialect);
  for (auto const& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") read_file(entry.path());
  }
}

void independent_decoder::read_file(std::filesystem::path const& file) {
  std::ifstream input(file, std::ios::binary);
  std::vector<char> const all{std::istreambuf_iterator<char>(input), {}};
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = length << 8 | static_cast<std::uint8_t>(all.at(i));
  auto const header =
      nlohmann::json::parse(all.begin() + 8, all.begin() + 8 + static_cast<std::ptrdiff_t>(length));
  for (auto const& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensor& into = tensors_[name];
    into.type = entry["dtype"].get<std::string>();
    into.shape = entry["shape"].get<std::vector<index_t>>();
    auto const offsets = entry["data_offsets"].get<std::vector<std::uint64_t>>();
    for (std::uint64_t i = offsets[0]; i < offsets[1]; ++i) {
      into.bytes.push_back(static_cast<std::uint8_t>(all.at(8 + length + i)));
    }
  }
}

independent_decoder::tensor const& independent_decoder::find(std::string const& name) const {
  auto const at = tensors_.find(name);
  if (at == tensors_.end()) throw std::invalid_argument("no tensor " + name);
  return at->second;
}

std::string independent_decoder::module(part which, index_t expert) const {
  std::string name = rule_->prefix;
  if (auto const at = name.find('%'); at != std::string::npos) {
    name.replace(at, 1, std::to_string(expert));
  }
  bool const down = which == part::down;
  if (is(rule_->projections, "fused")) return name + (down ? "down_proj" : "gate_up_proj");
  if (is(rule_->projections, "linear")) return name + (down ? "output_linear" : "input_linear");
  bool const numbered = is(rule_->projections, "w");
  if (down) return name + (numbered ? "w2" : "down_proj");
  if (which == part::up) return name + (numbered ? "w3" : "up_proj");
  return name + (numbered ? "w1" : "gate_proj");
}

namespace {

/// Where a row stands in a tensor, and how many rows and columns one matrix of that tensor has.
struct place {
  index_t row = 0;
  index_t rows = 0;
  index_t cols = 0;
};

place place_of(rule const& r, independent_decoder::part which, index_t row) {
  bool const down = which == independent_decoder::part::down;
  bool const up = which == independent_decoder::part::up;
  place at{row, down ? hidden : inter, down ? inter : hidden};
  bool const together = is(r.projections, "fused") || is(r.projections, "linear");
  if (!together || down) return at;
  at.rows = 2 * inter;
  at.row = is(r.stack, "interleaved") ? 2 * row + (up ? 1 : 0) : row + (up ? inter : 0);
  return at;
}

}  // namespace

float independent_decoder::value(tensor const& from, part which, index_t expert, index_t row,
                                 index_t col) const {
  place const at = place_of(*rule_, which, row);
  index_t const matrix = is(rule_->stack, "-") ? 0 : expert * at.rows * at.cols;
  index_t const element = is(rule_->stack, "in_out") ? matrix + col * at.rows + at.row
                                                     : matrix + at.row * at.cols + col;
  if (is(rule_->values, "e4m3")) return e4m3(word(from.bytes, element, 1));
  if (is(rule_->values, "int4")) {
    std::uint32_t const eight = word(from.bytes, at.row * (at.cols / 8) + col / 8, 4);
    return static_cast<float>((eight >> (4 * (col % 8))) & 0xfU) - 8.0F;
  }
  constexpr float table[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  std::uint32_t const two = word(from.bytes, element / 2, 1);
  std::uint32_t const code = element % 2 == 0 ? two & 0xfU : two >> 4;
  return (code & 8U) != 0 ? -table[code & 7U] : table[code & 7U];
}

float independent_decoder::scale(tensor const& from, part which, index_t expert, index_t row,
                                 index_t col) const {
  place const at = place_of(*rule_, which, row);
  if (is(rule_->scales, "tensor")) return stored(from, 0);
  index_t const first = is(rule_->stack, "-") ? 0 : expert;
  // one per output: gate_up [E, 1, 2I], down [E, H, 1], [E, N, 1], [N, 1] and [N] lie alike
  if (is(rule_->scales, "row")) return stored(from, first * at.rows + at.row);
  bool const block = is(rule_->scales, "block");
  index_t const group = is(rule_->scales, "g16") ? 16 : 32;
  index_t const rows = block ? blocks(at.rows) : at.rows;
  index_t const cols = block ? blocks(at.cols) : at.cols / group;
  index_t const r = block ? at.row / 128 : at.row;
  index_t const c = block ? col / 128 : col / group;
  index_t const in_matrix = is(rule_->stack, "in_out") ? c * rows + r : r * cols + c;
  return stored(from, first * rows * cols + in_matrix);
}

std::vector<float> independent_decoder::matrix(part which, index_t expert) const {
  tensor const& values = find(module(which, expert) + rule_->value_suffix);
  tensor const& scales = find(module(which, expert) + rule_->scale_suffix);
  std::string const global = rule_->global;
  float const second =
      global.empty() ? 1.0F : stored(find(module(which, expert) + global.substr(1)), 0);
  index_t const rows = which == part::down ? hidden : inter;
  index_t const cols = which == part::down ? inter : hidden;
  std::vector<float> numbers;
  for (index_t row = 0; row < rows; ++row) {
    for (index_t col = 0; col < cols; ++col) {
      float whole = scale(scales, which, expert, row, col);
      if (!global.empty()) whole = global[0] == '/' ? whole / second : whole * second;
      numbers.push_back(value(values, which, expert, row, col) * whole);
    }
  }
  return numbers;
}

float independent_decoder::bias(part which, index_t expert, index_t row) const {
  tensor const& from = find(module(which, expert) + "_bias");
  place const at = place_of(*rule_, which, row);
  return stored(from, expert * at.rows + at.row);
}

}  // namespace moe64::test
