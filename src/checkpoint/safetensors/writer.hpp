#pragma once

#include "checkpoint/files/checksum.hpp"
#include "checkpoint/files/output_file.hpp"
#include "checkpoint/safetensors/header.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// A tensor that is to be written.
struct new_tensor {
  std::string name;
  file_dtype type = file_dtype::u8;
  std::vector<index_t> shape;
};

/// Where the tensors of one file will lie, and the header that says so.
struct file_layout {
  struct place {
    index_t begin;  ///< absolute
    index_t bytes;
  };
  std::string header;          ///< the first bytes of the file, with its length in front
  std::vector<place> places;   ///< by position in the list of tensors
  std::vector<index_t> order;  ///< positions in the order of the file
  index_t bytes = 0;           ///< of the whole file
};

/// Tensors lie by alignment, then by name, as the format's reference writer puts them; the data
/// start at a multiple of 64. errc::invalid_argument for names or shapes that no reader would take,
/// and for a header past 25 MB: then use more shards.
[[nodiscard]] file_layout lay_out(std::span<new_tensor const> tensors,
                                  metadata_list const& metadata);

/// Writes one safetensors file, piece by piece. The bytes of a tensor come in order; different
/// tensors may be written from different threads at once.
class safetensors_writer {
 public:
  safetensors_writer(output_folder const& folder, std::string_view name,
                     std::vector<new_tensor> tensors, metadata_list const& metadata,
                     bool replace = false);

  [[nodiscard]] file_layout const& layout() const noexcept { return layout_; }

  /// The next bytes of a tensor, by position in the list.
  void append(index_t tensor, std::span<std::byte const> bytes);

  /// errc::invalid_argument when a tensor is not complete. Makes the file permanent, reads it back
  /// against the checksums, and gives it its name; the answer is the checksum of the whole file,
  /// the same as file_checksum() of it.
  std::uint64_t finish();

 private:
  struct progress {
    checksum sum;
    index_t written = 0;
  };

  std::vector<new_tensor> tensors_;
  file_layout layout_;
  output_file file_;
  std::vector<progress> progress_;
};

/// One number for a safetensors file: the checksum of the checksums of its header and of each
/// tensor, in the order of the file. So it can be had from tensors that are written in any order.
[[nodiscard]] std::uint64_t file_checksum(input_file const& file, safetensors_header const& header);

}  // namespace moe64::checkpoint
