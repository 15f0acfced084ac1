#pragma once

#include "moe64/index.hpp"

#include <map>
#include <string>
#include <string_view>

namespace moe64::checkpoint {

/// The named extents of a model: "hidden", "experts", "kv_rank". Templates are written in them.
class synth_extents {
 public:
  /// "hidden=2048 inter=768": the extents of the real model.
  explicit synth_extents(std::string_view text);

  [[nodiscard]] index_t at(std::string_view name) const;  ///< errc::internal when unknown
  [[nodiscard]] index_t get(std::string_view name, index_t otherwise) const;
  void set(std::string_view name, index_t value);

  /// A sum of products of names and numbers: "heads*nope+heads*v_dim".
  [[nodiscard]] index_t evaluate(std::string_view expression) const;

 private:
  std::map<std::string, index_t, std::less<>> values_;
};

/// Divides extents, layers and experts by `scale_down`. What blocks of 128 fill exactly they still
/// fill, and what they do not stays ragged, so that a small model has the edges of its large one.
/// `layers` > 0 replaces the number of layers.
[[nodiscard]] synth_extents scaled_down(synth_extents const& real, index_t scale_down,
                                        index_t layers);

}  // namespace moe64::checkpoint
