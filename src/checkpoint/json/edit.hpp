#pragma once

#include "checkpoint/json/json.hpp"

#include <string>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// One change to a document: another text for a value, or its removal from its object.
struct json_edit {
  json_value const* at = nullptr;
  std::string text;  ///< JSON; empty: removed with its key
};

/// The document with the changes, everything else as it was: order, texts, and numbers as the file
/// spells them; indented by two. `appended` are further members (key and JSON text) of the root.
[[nodiscard]] std::string edited(json_value const& root, std::vector<json_edit> const& edits,
                                 std::vector<std::pair<std::string, std::string>> const& appended);

}  // namespace moe64::checkpoint
