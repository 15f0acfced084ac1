#pragma once

#include "capi/checks.hpp"
#include "moe64/c/checkpoint.h"
#include "moe64/checkpoint.hpp"

#include <span>
#include <string_view>
#include <vector>

/// Never moved or changed: answers point to its texts.
struct moe64_checkpoint {
  moe64::checkpoint_reader reader;
  std::vector<moe64::finding> findings;
  moe64::checkpoint_description description;
};

namespace moe64::capi {

/// Number i of a list that is counted in an answer.
template <class T>
[[nodiscard]] T const& numbered(std::span<T const> list, int64_t i, argument const& at) {
  if (i < 0 || i >= std::ssize(list)) {
    fail(errc::invalid_argument, "{} i is {}, and there are {}", at.text(), i, list.size());
  }
  return list[static_cast<std::size_t>(i)];
}

/// The caller's progress function; what it stops is errc::interrupted.
[[nodiscard]] inline progress_report report_to(std::string_view operation, moe64_progress progress,
                                               void* user_data) {
  if (progress == nullptr) return {};
  return [=](index_t done, index_t total) {
    if (progress(user_data, done, total) == 0) return;
    fail(errc::interrupted, "[{}] the progress report asked to stop after {} of {} bytes",
         operation, done, total);
  };
}

}  // namespace moe64::capi
