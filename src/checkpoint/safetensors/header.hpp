#pragma once

#include "checkpoint/files/input_file.hpp"
#include "checkpoint/findings/findings.hpp"
#include "checkpoint/safetensors/tensor_entry.hpp"
#include "moe64/index.hpp"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// What a header may be. Memory is at most about ten times its text, whatever it declares.
struct header_options {
  bool lenient = false;  ///< an unknown field in a tensor's entry is a finding, not an error
  index_t max_bytes = 100'000'000;  ///< of the JSON text: the limit of the format
  index_t max_rank = 16;
  index_t max_tensors = 10'000'000;
  index_t max_metadata_bytes = index_t{16} << 20;
  index_t max_depth = 8;
};

using metadata_list = std::vector<std::pair<std::string, std::string>>;

/// The validated header of one safetensors file: no tensor twice, every range as long as type and
/// shape say, the ranges without hole or overlap from the end of the header to the end of the file.
class safetensors_header {
 public:
  /// errc::malformed_file, naming file and tensor, when a rule is broken.
  [[nodiscard]] static safetensors_header read(input_file const& file,
                                               header_options const& options = {});
  /// The same for a header that is in memory: `text` without the eight bytes of its length.
  [[nodiscard]] static safetensors_header parse(std::string_view text, std::string_view file_name,
                                                index_t file_bytes,
                                                header_options const& options = {});

  /// Sorted by name; shard is 0. Names and shapes live as long as the header, also when it moves.
  [[nodiscard]] std::span<tensor_entry const> tensors() const noexcept { return tensors_; }
  [[nodiscard]] metadata_list const& metadata() const noexcept { return metadata_; }
  [[nodiscard]] std::vector<finding> const& warnings() const noexcept { return warnings_; }
  [[nodiscard]] index_t data_begin() const noexcept { return data_begin_; }

 private:
  std::vector<char> names_;
  std::vector<index_t> extents_;
  std::vector<tensor_entry> tensors_;
  metadata_list metadata_;
  std::vector<finding> warnings_;
  index_t data_begin_ = 0;
};

/// Sets `bytes` to the size of a tensor; or answers why it has none: an extent below 0, a product
/// of the extents (those of 0 left out) past 63 bits, elements that do not fill whole bytes.
[[nodiscard]] std::string_view count_bytes(file_dtype type, std::span<index_t const> shape,
                                           index_t& bytes) noexcept;

/// "[3, 128]"
[[nodiscard]] std::string to_string(std::span<index_t const> shape);

}  // namespace moe64::checkpoint
