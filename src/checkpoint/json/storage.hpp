#pragma once

#include "checkpoint/json/json.hpp"

#include <string>
#include <vector>

namespace moe64::checkpoint {

/// What a document owns; seen by json.cpp and by the builder alone.
struct json_document::storage {
  std::string file;                ///< printable
  std::string characters;          ///< keys, texts and numbers
  std::vector<json_value> values;  ///< in file order; the first is the root
};

}  // namespace moe64::checkpoint
