#include "checkpoint/merge/adapter.hpp"

#include "checkpoint/files/checksum.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/naming/adapter_path.hpp"
#include "core/fail.hpp"
#include "core/number.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace moe64::checkpoint {
namespace {

constexpr std::string_view config_name = "adapter_config.json";
constexpr std::string_view weights_name = "adapter_model.safetensors";
constexpr index_t config_limit = index_t{16} << 20;
constexpr index_t piece_bytes = index_t{4} << 20;

std::unique_ptr<json_document const> config_of(std::string const& text) {
  json_limits limits;
  limits.non_finite = true;
  return parse_json(text, config_name, limits);
}

/// Which other kind of adapter a tensor is of, for a message.
std::string_view kind_of(std::string_view name) {
  if (name.find("lora_magnitude_vector") != std::string_view::npos) {
    return "a magnitude of DoRA, which is not supported";
  }
  if (name.find("lora_embedding_") != std::string_view::npos) {
    return "an adapter of an embedding, which is not supported";
  }
  if (name.find("hada_") != std::string_view::npos) return "of LoHa, which is not supported";
  if (name.find("lokr_") != std::string_view::npos) return "of LoKr, which is not supported";
  if (name.ends_with(".lora_B.bias")) return "a bias of B, which is not supported";
  if (name.find("lora_") == std::string_view::npos) {
    return "no factor of LoRA: saved modules, biases and token rows are not supported";
  }
  return "not named as a factor of LoRA (base_model.model.PATH.lora_A.weight or lora_B.weight)";
}

template <class Number>
bool all_finite(std::span<std::byte const> bytes, index_t width) {
  auto const count = static_cast<index_t>(bytes.size()) / width;
  bool finite = true;
  for (index_t i = 0; i < count; ++i) {
    float const number = Number::get(bytes.data(), i);
    finite = finite & (number - number == 0.0F);
  }
  return finite;
}

bool all_finite(file_dtype type, std::span<std::byte const> bytes) {
  if (type == file_dtype::f32) return all_finite<f32_number>(bytes, 4);
  return type == file_dtype::bf16 ? all_finite<bf16_number>(bytes, 2)
                                  : all_finite<f16_number>(bytes, 2);
}

template <class Number>
void read_all(std::span<std::byte const> from, std::span<float> into) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    into[i] = Number::get(from.data(), static_cast<index_t>(i));
  }
}

}  // namespace

void read_factor_numbers(file_dtype type, std::span<std::byte const> from, std::span<float> into) {
  if (type == file_dtype::f32) return read_all<f32_number>(from, into);
  type == file_dtype::bf16 ? read_all<bf16_number>(from, into) : read_all<f16_number>(from, into);
}

adapter_files adapter_files::open(std::string const& path, file_system const& files) {
  file_status status;
  if (int const result = files.path_status(path, true, status); result < 0) {
    fail(errc::io_failure, "[merge] adapter {}: {}", escaped_path(path), error_text(-result));
  }
  std::string folder = path;
  std::string weights = path;
  if (status.kind == file_kind::folder) {
    weights = fmt::format("{}/{}", path, weights_name);
  } else {
    std::size_t const slash = path.rfind('/');
    folder = slash == std::string::npos ? "." : path.substr(0, slash);
  }
  auto config = input_file::open_if_present(files, fmt::format("{}/{}", folder, config_name),
                                            link_rule::hub_cache);
  if (!config) {
    fail(errc::io_failure, "[merge] adapter {}: has no {}, so that it is no adapter of PEFT",
         escaped_path(path), config_name);
  }
  auto file = input_file::open_if_present(files, weights, link_rule::hub_cache);
  if (!file) {
    fail(
        errc::io_failure,
        "[merge] adapter {}: has no {}; adapters in other formats (adapter_model.bin) are not read",
        escaped_path(path), weights_name);
  }
  std::string const text = config->read_text(config_limit);
  adapter_files opened(std::move(*config), text, std::move(*file));
  opened.path_ = path;
  opened.collect();
  return opened;
}

adapter_files::adapter_files(input_file config_file, std::string const& text, input_file file)
    : config_file_(std::move(config_file)),
      config_text_(text),
      config_(adapter_config::read(config_of(text)->root())),
      file_(std::move(file)),
      header_(safetensors_header::read(file_)) {}

void adapter_files::collect() {
  for (tensor_entry const& tensor : header_.tensors()) add_factor(tensor);
  if (pairs_.empty()) {
    fail(errc::malformed_file, "[merge] {}: holds no factor of LoRA", escaped_path(file_.path()));
  }
  std::sort(pairs_.begin(), pairs_.end(), [](factor_pair const& left, factor_pair const& right) {
    return std::tie(left.path, left.inner) < std::tie(right.path, right.inner);
  });
  for (factor_pair const& pair : pairs_) {
    if (pair.a != nullptr && pair.b != nullptr) continue;
    tensor_entry const* const there = pair.a != nullptr ? pair.a : pair.b;
    fail(errc::malformed_file, "[merge] {}: {} is there without lora_{} beside it",
         escaped_path(file_.path()), quoted(there->name), pair.a == nullptr ? "A" : "B");
  }
}

void adapter_files::add_factor(tensor_entry const& tensor) {
  auto const key = match_adapter_key(tensor.name);
  if (!key) {
    fail(errc::unsupported, "[merge] {}: {} is {}", escaped_path(file_.path()), quoted(tensor.name),
         kind_of(tensor.name));
  }
  if (tensor.type != file_dtype::f32 && tensor.type != file_dtype::bf16 &&
      tensor.type != file_dtype::f16) {
    fail(errc::dtype_mismatch, "[merge] {}: {} is {}, expected F32, BF16 or F16",
         escaped_path(file_.path()), quoted(tensor.name), name(tensor.type));
  }
  if (tensor.shape.size() != 2 || tensor.bytes == 0) {
    fail(errc::shape_mismatch, "[merge] {}: {} is {}, expected a matrix",
         escaped_path(file_.path()), quoted(tensor.name), to_string(tensor.shape));
  }
  // names are sorted, so that the factors of a path are not far from each other
  auto const same = [&](factor_pair const& pair) {
    return pair.inner == key->inner && pair.path == key->path;
  };
  auto const begin = pairs_.size() > 8 ? pairs_.end() - 8 : pairs_.begin();
  auto found = std::find_if(begin, pairs_.end(), same);
  if (found == pairs_.end()) {
    pairs_.push_back({key->path, key->inner, nullptr, nullptr});
    found = pairs_.end() - 1;
  }
  (key->is_b ? found->b : found->a) = &tensor;
}

void adapter_files::read(tensor_entry const& factor, index_t offset,
                         std::span<std::byte> into) const {
  file_.read(factor.begin + offset, into);
}

void adapter_files::check_unchanged() const {
  config_file_.check_unchanged();
  file_.check_unchanged();
}

std::uint64_t adapter_files::checked_sum() const {
  checksum sum;
  sum.add(std::as_bytes(std::span(config_text_)));
  std::vector<std::byte> memory;
  for (tensor_entry const& tensor : header_.tensors()) {
    sum.add(std::as_bytes(std::span(tensor.name)));
    sum.add(std::as_bytes(tensor.shape));
    for (index_t at = 0; at < tensor.bytes; at += piece_bytes) {
      memory.resize(static_cast<std::size_t>(std::min(piece_bytes, tensor.bytes - at)));
      read(tensor, at, memory);
      if (!all_finite(tensor.type, memory)) {
        fail(errc::invalid_argument, "[merge] {}: {} has numbers that are not finite",
             escaped_path(file_.path()), quoted(tensor.name));
      }
      sum.add(memory);
    }
  }
  return sum.value();
}

}  // namespace moe64::checkpoint
