#pragma once

#include "moe64/index.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace moe64::test {

/// A second reading of checkpoints: files parsed and numbers decoded from the definitions of the
/// formats, one number at a time, without any code of the library. It knows the small checkpoints
/// of dialect_cases() by the id of their dialect.
class independent_decoder {
 public:
  enum class part { gate, up, down };

  independent_decoder(std::filesystem::path const& folder, std::string const& dialect);

  /// One expert's matrix, row after row, as f32: the product of code and scale is taken in f32, and
  /// so is that of scale and global scale.
  [[nodiscard]] std::vector<float> matrix(part which, index_t expert) const;
  /// Element `row` of one expert's bias.
  [[nodiscard]] float bias(part which, index_t expert, index_t row) const;

  struct tensor {
    std::string type;
    std::vector<index_t> shape;
    std::vector<std::uint8_t> bytes;
  };
  struct rule;

 private:
  void read_file(std::filesystem::path const& file);
  [[nodiscard]] tensor const& find(std::string const& name) const;
  [[nodiscard]] std::string module(part which, index_t expert) const;
  [[nodiscard]] float value(tensor const& from, part which, index_t expert, index_t row,
                            index_t col) const;
  [[nodiscard]] float scale(tensor const& from, part which, index_t expert, index_t row,
                            index_t col) const;

  rule const* rule_;
  std::map<std::string, tensor> tensors_;
};

}  // namespace moe64::test
