#include "support/defined_checkpoint.hpp"

#include "support/random.hpp"
#include "support/safetensors_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace moe64::test {
namespace {

using enum file_dtype;

bool is_scale_name(std::string_view name) { return name.find("scale") != std::string_view::npos; }

template <class Word>
void put(std::vector<std::byte>& bytes, std::size_t i, Word word) {
  std::memcpy(bytes.data() + i * sizeof(Word), &word, sizeof(Word));
}

void fill_scales(std::string const& name, tensor_bytes& tensor) {
  random_source const draw(std::hash<std::string>{}(name));
  bool const divides = name.ends_with("global_scale");
  std::size_t const count =
      tensor.bytes.size() * 8 / static_cast<std::size_t>(checkpoint::bits(tensor.type));
  for (std::size_t i = 0; i < count; ++i) {
    auto const at = static_cast<index_t>(i);
    auto number = static_cast<float>(draw.uniform(at, 0.001, 0.02));
    if (divides) number = 1.0F / number;
    if (tensor.type == f32) put(tensor.bytes, i, number);
    if (tensor.type == bf16) put(tensor.bytes, i, to_bf16(number));
    if (tensor.type == f16) put(tensor.bytes, i, to_f16(number));
    if (tensor.type == f8_e4m3)
      put(tensor.bytes, i, static_cast<std::uint8_t>(1 + draw.below(at, 120)));
    if (tensor.type == u8 || tensor.type == f8_e8m0) {
      put(tensor.bytes, i, static_cast<std::uint8_t>(draw.between(at, 112, 124)));
    }
  }
}

/// Powers of two where the config claims them.
void round_scales(tensor_bytes& tensor) {
  for (std::size_t i = 0; i < tensor.bytes.size() / 4; ++i) {
    float number = 0;
    std::memcpy(&number, tensor.bytes.data() + 4 * i, 4);
    put(tensor.bytes, i, std::exp2(std::round(std::log2(number))));
  }
}

void fill_values(std::string const& name, tensor_bytes& tensor) {
  random_source const draw(std::hash<std::string>{}(name));
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) {
    auto byte = static_cast<std::uint8_t>(draw.bits(static_cast<index_t>(i)) & 0xffU);
    if (tensor.type == f8_e4m3 && (byte & 0x7fU) == 0x7fU) byte ^= 1U;  // no NaN
    tensor.bytes[i] = static_cast<std::byte>(byte);
  }
  if (tensor.type == bf16) {  // biases and norms: numbers near 1
    for (std::size_t i = 0; i < tensor.bytes.size() / 2; ++i) {
      put(tensor.bytes, i, to_bf16(static_cast<float>(draw.uniform(static_cast<index_t>(i)))));
    }
  }
}

float nibble_fp4(unsigned nibble) {
  constexpr float table[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  return (nibble & 8U) != 0 ? -table[nibble & 7U] : table[nibble & 7U];
}

unsigned nibble_at(tensor_bytes const& tensor, index_t element) {
  auto const byte = static_cast<unsigned>(tensor.bytes[static_cast<std::size_t>(element / 2)]);
  return element % 2 == 0 ? byte & 15U : byte >> 4;
}

float round_to(float number, int mantissa_bits, int least_exponent) {
  // nearest, ties to even, in an arithmetic that is exact here: double
  if (number == 0.0F || !std::isfinite(number)) return number;
  int exponent = 0;
  std::frexp(static_cast<double>(number), &exponent);
  int const unit = std::max(exponent - 1, least_exponent) - mantissa_bits;
  double const scaled = std::ldexp(static_cast<double>(number), -unit);
  return static_cast<float>(std::ldexp(std::nearbyint(scaled), unit));
}

}  // namespace

std::uint16_t to_bf16(float number) {
  float const rounded = round_to(number, 7, -126);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &rounded, 4);
  return static_cast<std::uint16_t>(bits >> 16);
}

std::uint16_t to_f16(float number) {
  float const rounded = round_to(number, 10, -14);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &rounded, 4);
  auto const sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  float const size = std::fabs(rounded);
  if (std::isnan(rounded)) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (size >= 65536.0F) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (size < 0x1p-14F) {
    return static_cast<std::uint16_t>(sign | static_cast<unsigned>(size * 0x1p24F));
  }
  int exponent = 0;
  float const fraction = std::frexp(size, &exponent);
  auto const mantissa = static_cast<unsigned>((fraction * 2.0F - 1.0F) * 1024.0F);
  return static_cast<std::uint16_t>(sign | static_cast<unsigned>((exponent + 14) << 10) | mantissa);
}

float e4m3_number_of(std::uint8_t code) {
  int const exponent = (code >> 3) & 15;
  int const mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  float const size = exponent == 0
                         ? std::ldexp(static_cast<float>(mantissa), -9)
                         : std::ldexp(1.0F + static_cast<float>(mantissa) / 8.0F, exponent - 7);
  return (code & 0x80U) != 0 ? -size : size;
}

std::uint8_t to_e4m3(float number) {
  std::uint8_t best = 0;
  double least = 1e300;
  double const size = std::fabs(static_cast<double>(number));
  for (unsigned code = 0; code < 0x7f; ++code) {
    double const distance =
        std::fabs(size - static_cast<double>(e4m3_number_of(static_cast<std::uint8_t>(code))));
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = static_cast<std::uint8_t>(code);
    }
  }
  return std::signbit(number) ? static_cast<std::uint8_t>(best | 0x80U) : best;
}

float stored_number(tensor_bytes const& tensor, index_t i) {
  auto const at = static_cast<std::size_t>(i);
  std::byte const* const data = tensor.bytes.data();
  if (tensor.type == f32) {
    float number = 0;
    std::memcpy(&number, data + 4 * at, 4);
    return number;
  }
  if (tensor.type == bf16 || tensor.type == f16) {
    std::uint16_t word = 0;
    std::memcpy(&word, data + 2 * at, 2);
    if (tensor.type == bf16) {
      std::uint32_t const wide = static_cast<std::uint32_t>(word) << 16;
      float number = 0;
      std::memcpy(&number, &wide, 4);
      return number;
    }
    int const exponent = (word >> 10) & 31;
    int const mantissa = word & 1023;
    float const size =
        exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
        : exponent == 31 ? (mantissa == 0 ? HUGE_VALF : std::nanf(""))
                         : std::ldexp(1.0F + static_cast<float>(mantissa) / 1024.0F, exponent - 15);
    return (word & 0x8000U) != 0 ? -size : size;
  }
  auto const code = static_cast<std::uint8_t>(data[at]);
  if (tensor.type == f8_e4m3) return e4m3_number_of(code);
  if (tensor.type == u8 || tensor.type == f8_e8m0) return std::ldexp(1.0F, code - 127);
  throw std::invalid_argument("no numbers");
}

tensor_map plausible_tensors(checkpoint_builder const& builder) {
  tensor_map tensors;
  bool const powers = builder.texts()[0].find("ue8m0") != std::string::npos;
  for (std::string const& name : builder.names()) {
    tensor_bytes tensor{builder.type_of(name), builder.shape_of(name), builder.bytes_of(name)};
    if (is_scale_name(name)) {
      fill_scales(name, tensor);
      if (powers && tensor.type == f32) round_scales(tensor);
    } else if (name.ends_with(".weight_shape")) {
      bool const down = name.find("down_proj") != std::string::npos;
      put<std::int64_t>(tensor.bytes, 0, down ? case_extents::hidden : case_extents::inter);
      put<std::int64_t>(tensor.bytes, 1, down ? case_extents::inter : case_extents::hidden);
    } else {
      fill_values(name, tensor);
    }
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

std::string file_of(tensor_map const& tensors) {
  std::string header = "{";
  std::string data;
  for (auto const& [name, tensor] : tensors) {
    if (header.size() > 1) header += ',';
    header += fmt::format("\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", name,
                          checkpoint::name(tensor.type), nlohmann::json(tensor.shape).dump(),
                          data.size(), data.size() + tensor.bytes.size());
    data.append(reinterpret_cast<char const*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return safetensors_bytes(header + "}", data);
}

void write_checkpoint(temp_folder const& folder, checkpoint_builder const& builder,
                      tensor_map const& tensors, int shards) {
  constexpr std::string_view names[] = {"config.json", "hf_quant_config.json", "params.json"};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!builder.texts()[i].empty()) folder.write(names[i], builder.texts()[i]);
  }
  std::vector<tensor_map> parts(static_cast<std::size_t>(shards));
  std::size_t at = 0;
  for (auto const& [name, tensor] : tensors) {
    parts[at++ % parts.size()].emplace(name, tensor);
  }
  if (shards == 1) {
    folder.write("model.safetensors", file_of(parts[0]));
    return;
  }
  nlohmann::json index;
  index["metadata"] = nlohmann::json::object();
  for (int i = 0; i < shards; ++i) {
    std::string const file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards);
    auto const& part = parts[static_cast<std::size_t>(i)];
    folder.write(file, file_of(part));
    for (auto const& [name, tensor] : part) index["weight_map"][name] = file;
  }
  folder.write("model.safetensors.index.json", index.dump());
}

tensor_map read_tensors(std::string const& folder) {
  tensor_map tensors;
  for (auto const& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string const bytes{std::istreambuf_iterator<char>(file), {}};
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    auto const header = nlohmann::json::parse(bytes.substr(8, length));
    for (auto const& [name, value] : header.items()) {
      if (name == "__metadata__") continue;
      tensor_bytes tensor;
      tensor.type = *checkpoint::file_dtype_named(value["dtype"].get<std::string>());
      tensor.shape = value["shape"].get<std::vector<index_t>>();
      auto const begin = value["data_offsets"][0].get<std::size_t>() + 8 + length;
      auto const end = value["data_offsets"][1].get<std::size_t>() + 8 + length;
      auto const* const data = reinterpret_cast<std::byte const*>(bytes.data());
      tensor.bytes.assign(data + begin, data + end);
      tensors.emplace(name, std::move(tensor));
    }
  }
  return tensors;
}

std::string module_of(dialect_case const& c, tensor_map const& tensors, projection_kind projection,
                      index_t expert) {
  bool const stacked = checkpoint::is_stacked(c.schema);
  for (auto const& [name, tensor] : tensors) {
    auto const key = checkpoint::match_key(name);
    if (!key || key->part != checkpoint::tensor_part::weight) continue;
    bool const fused =
        key->projection == projection_kind::gate_up && projection != projection_kind::down;
    if ((key->projection == projection || fused) && (stacked || key->expert == expert)) {
      return std::string(key->module);
    }
  }
  throw std::invalid_argument("no such module");
}

defined_matrix::defined_matrix(dialect_case const& c, tensor_map const& tensors,
                               projection_kind projection, index_t expert)
    : case_(c) {
  using checkpoint::key_schema;
  std::string const module = module_of(c, tensors, projection, expert);
  for (auto const& [name, tensor] : tensors) {
    auto const key = checkpoint::match_key(name);
    if (!key || key->module != module) continue;
    if (key->part == checkpoint::tensor_part::weight) values_ = &tensor;
    if (checkpoint::is_weight_scale(key->part)) scales_ = &tensor;
    if (key->part == checkpoint::tensor_part::weight_scale_2 ||
        key->part == checkpoint::tensor_part::weight_global_scale) {
      global_ = &tensor;
    }
  }
  bool const down = projection == projection_kind::down;
  bool const stacked = checkpoint::is_stacked(c.schema);
  inputs_ = down ? case_extents::inter : case_extents::hidden;
  rows_ = outputs_ = down ? case_extents::hidden : case_extents::inter;
  slice_ = stacked ? expert : 0;
  turned_ = c.schema == key_schema::mlp_stack || c.schema == key_schema::feed_forward_stack;
  if (down || !stacked || c.schema == key_schema::moe_stack) return;
  index_t const part = projection == projection_kind::up ? 1 : 0;
  outputs_ = 2 * rows_;
  first_ = c.schema == key_schema::mlp_stack_blocks ? part : part * rows_;
  step_ = c.schema == key_schema::mlp_stack_blocks ? 2 : 1;
}

float defined_matrix::scale(index_t output, index_t col) const {
  using checkpoint::scale_codec;
  if (case_.scales == scale_codec::tensor) return stored_number(*scales_, 0);
  index_t block_rows = 1;
  index_t block_cols = inputs_;
  switch (case_.scales) {
    case scale_codec::blk:
    case scale_codec::blk_pow2:
    case scale_codec::blk4d:
      block_rows = block_cols = 128;
      break;
    case scale_codec::mx32:
    case scale_codec::grp:
      block_cols = 32;
      break;
    case scale_codec::nv16_mul:
    case scale_codec::nv16_div:
      block_cols = 16;
      break;
    default:
      break;
  }
  index_t const grid_rows = (outputs_ + block_rows - 1) / block_rows;
  index_t const grid_cols = (inputs_ + block_cols - 1) / block_cols;
  index_t const i = output / block_rows;
  index_t const j = col / block_cols;
  float const number = stored_number(
      *scales_, slice_ * grid_rows * grid_cols + (turned_ ? j * grid_rows + i : i * grid_cols + j));
  if (case_.scales == scale_codec::nv16_mul) return number * stored_number(*global_, 0);
  if (case_.scales == scale_codec::nv16_div) return number / stored_number(*global_, 0);
  return number;
}

float defined_matrix::operator()(index_t row, index_t col) const {
  using checkpoint::value_codec;
  index_t const output = first_ + row * step_;
  index_t const element =
      slice_ * outputs_ * inputs_ + (turned_ ? col * outputs_ + output : output * inputs_ + col);
  switch (case_.values) {
    case value_codec::e4m3:
      return stored_number(*values_, element) * scale(output, col);
    case value_codec::int4x8:
      return (static_cast<float>(nibble_at(*values_, element)) - 8.0F) * scale(output, col);
    default:
      return nibble_fp4(nibble_at(*values_, element)) * scale(output, col);
  }
}

}  // namespace moe64::test
