#pragma once

#include "checkpoint/safetensors/file_dtype.hpp"
#include "moe64/index.hpp"
#include "support/checkpoint_builder.hpp"
#include "support/temp_folder.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::test {

/// A tensor with its bytes.
struct tensor_bytes {
  file_dtype type = file_dtype::u8;
  std::vector<index_t> shape;
  std::vector<std::byte> bytes;
};
using tensor_map = std::map<std::string, tensor_bytes>;

/// The tensors of a described checkpoint with numbers that a model could have: no NaN codes, scales
/// positive and of ordinary size, shapes that are true.
[[nodiscard]] tensor_map plausible_tensors(checkpoint_builder const& builder);

/// One safetensors file as bytes.
[[nodiscard]] std::string file_of(tensor_map const& tensors);

/// Writes a folder with the configs of the builder and the tensors in `shards` files with an index.
void write_checkpoint(temp_folder const& folder, checkpoint_builder const& builder,
                      tensor_map const& tensors, int shards = 1);

/// Every tensor of every safetensors file in the folder.
[[nodiscard]] tensor_map read_tensors(std::string const& folder);

// ---- the definitions of formats, in plain loops; nothing of the library -------------------------

/// Number i of an array of stored numbers: floats, exponents (U8 and F8_E8M0), F8_E4M3.
[[nodiscard]] float stored_number(tensor_bytes const& tensor, index_t i);
[[nodiscard]] std::uint16_t to_bf16(float number);
[[nodiscard]] std::uint16_t to_f16(float number);
[[nodiscard]] std::uint8_t to_e4m3(float number);  ///< nearest, ties to even, largest 448
[[nodiscard]] float e4m3_number_of(std::uint8_t code);

/// One expert's projection as the dialect defines its numbers. Points into the tensors.
class defined_matrix {
 public:
  defined_matrix(dialect_case const& c, tensor_map const& tensors, projection_kind projection,
                 index_t expert);

  [[nodiscard]] index_t rows() const { return rows_; }
  [[nodiscard]] index_t cols() const { return inputs_; }
  [[nodiscard]] float operator()(index_t row, index_t col) const;

 private:
  [[nodiscard]] float scale(index_t output, index_t col) const;

  dialect_case const& case_;
  tensor_bytes const* values_ = nullptr;
  tensor_bytes const* scales_ = nullptr;
  tensor_bytes const* global_ = nullptr;
  index_t rows_;
  index_t inputs_;
  index_t outputs_;  ///< of the tensor: twice the rows when fused
  index_t slice_;
  index_t first_ = 0;  ///< output of row 0, and how far the next one is
  index_t step_ = 1;
  bool turned_;
};

/// What the modules of a case are called: "model.layers.0.mlp.experts.2.up_proj", or for a stack
/// "model.layers.0.mlp.experts.gate_up_proj".
[[nodiscard]] std::string module_of(dialect_case const& c, tensor_map const& tensors,
                                    projection_kind projection, index_t expert);

}  // namespace moe64::test
