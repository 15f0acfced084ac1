#pragma once

#include "checkpoint/findings/findings.hpp"
#include "checkpoint/json/json.hpp"
#include "moe64/index.hpp"

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::checkpoint {

/// The documents of a checkpoint that state something about its tensors; null where absent.
struct config_sources {
  json_value const* config = nullptr;           ///< config.json
  json_value const* hf_quant_config = nullptr;  ///< hf_quant_config.json (ModelOpt)
  json_value const* params = nullptr;           ///< params.json (Mistral)
  bool partial = false;  ///< the tensors are of one file, which may be a shard of many
};

/// A value and where it was read: "config.json: text_config.hidden_size".
template <class T>
struct stated {
  T value = {};
  std::string source;
};
template <class T>
using fact = std::optional<stated<T>>;

/// Looks facts up by any of their names in several objects. The first hit counts; a second one with
/// another value is an error, a value of another kind too. Null counts as absent.
class config_facts {
 public:
  config_facts(std::vector<json_value const*> objects, findings& found)
      : objects_(std::move(objects)), found_(&found) {}

  [[nodiscard]] fact<index_t> integer(std::initializer_list<std::string_view> names) const;
  [[nodiscard]] fact<double> real(std::initializer_list<std::string_view> names) const;
  [[nodiscard]] fact<std::string> text(std::initializer_list<std::string_view> names) const;
  /// The first value of any kind but null.
  [[nodiscard]] json_value const* value(std::initializer_list<std::string_view> names) const;

  [[nodiscard]] findings& found() const noexcept { return *found_; }

 private:
  template <class T, class Read>
  fact<T> first(std::initializer_list<std::string_view> names, Read const& read) const;

  std::vector<json_value const*> objects_;
  findings* found_;
};

/// The objects that a fact about the language model may stand in: config.json itself, then its
/// text_config, language_config or llm_config, then params.json and its `moe`.
[[nodiscard]] std::vector<json_value const*> language_objects(config_sources const& sources);

}  // namespace moe64::checkpoint
