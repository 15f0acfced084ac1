#pragma once

#include <string>
#include <vector>

namespace moe64::checkpoint {

/// Something about a checkpoint that is legal but worth telling. What is not legal is an error.
struct finding {
  std::string rule;  ///< a stable word to filter by: "leading-whitespace", "total-size"
  std::string text;  ///< a sentence that names the file; safe to print
};

using findings = std::vector<finding>;

}  // namespace moe64::checkpoint
