#pragma once

#include "moe64/check.hpp"
#include "moe64/synth.hpp"
#include "support/temp_folder.hpp"

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::test {

/// A synthetic checkpoint on disk whose files can be spoiled in place.
class edited_checkpoint {
 public:
  explicit edited_checkpoint(synth_options const& options);

  [[nodiscard]] std::vector<std::string> names() const;  ///< of all tensors
  /// Changes the bytes of every tensor whose name the rule wants; fails when it wants none.
  void edit(std::function<bool(std::string const& name)> const& wanted,
            std::function<void(std::vector<std::byte>& bytes)> const& change);
  /// The same for numbers stored as F32 or BF16.
  void edit_numbers(std::function<bool(std::string const& name)> const& wanted,
                    std::function<double(index_t i, double number)> const& change);
  /// Copies the bytes of one tensor over those of another of the same size.
  void copy(std::string const& from, std::string const& over);
  /// Replaces a text by one of the same length in all headers and the index.
  void rename(std::string_view old, std::string_view now);
  /// Replaces a text in config.json.
  void configure(std::string_view old, std::string_view now);

  [[nodiscard]] check_report check() const;
  [[nodiscard]] std::string path() const { return where_.file("made"); }

 private:
  temp_folder where_;
};

/// "model.layers.2." and the like: names of the layer with that number.
[[nodiscard]] bool is_of_layer(std::string const& name, index_t layer);

}  // namespace moe64::test
