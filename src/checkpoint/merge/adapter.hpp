#pragma once

#include "checkpoint/files/input_file.hpp"
#include "checkpoint/merge/adapter_config.hpp"
#include "checkpoint/safetensors/header.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// The two factors of one module: delta = scaling * B * A.
struct factor_pair {
  std::string path;   ///< of the module in the model
  index_t inner = 0;  ///< adapters of other parameters of the same module around this one
  tensor_entry const* a = nullptr;  ///< [experts * rank, in]
  tensor_entry const* b = nullptr;  ///< [out, rank * experts]
};

/// A LoRA adapter as PEFT and unsloth save it: adapter_config.json and adapter_model.safetensors.
/// All const members may be called from several threads at once.
class adapter_files {
 public:
  /// A folder, or the safetensors file of one. errc::io_failure, errc::malformed_file or
  /// errc::unsupported, with the name of the tensor or key, for what cannot be merged: factors
  /// without their other half, other tensors than factors, shapes that are no matrices.
  [[nodiscard]] static adapter_files open(std::string const& path, file_system const& files);

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] adapter_config const& config() const noexcept { return config_; }
  /// By path, outer ones first.
  [[nodiscard]] std::span<factor_pair const> pairs() const noexcept { return pairs_; }
  [[nodiscard]] index_t bytes() const noexcept { return file_.bytes(); }

  void read(tensor_entry const& factor, index_t offset, std::span<std::byte> into) const;
  /// errc::io_failure when a file has another size or time than when it was opened.
  void check_unchanged() const;

  /// Reads every number once: errc::invalid_argument for one that is not finite, with the name of
  /// its tensor. The checksum of all that the adapter says.
  [[nodiscard]] std::uint64_t checked_sum() const;

 private:
  adapter_files(input_file config_file, std::string const& text, input_file file);
  void collect();
  void add_factor(tensor_entry const& tensor);

  std::string path_;
  input_file config_file_;
  std::string config_text_;
  adapter_config config_;
  input_file file_;
  safetensors_header header_;
  std::vector<factor_pair> pairs_;
};

/// f32 of `count` numbers of a factor as stored.
void read_factor_numbers(file_dtype type, std::span<std::byte const> from, std::span<float> into);

}  // namespace moe64::checkpoint
