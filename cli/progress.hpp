#pragma once

#include "moe64/index.hpp"

#include <chrono>
#include <mutex>
#include <string>

namespace moe64::cli {

/// When bars are drawn: on a terminal, always (--progress), or never.
enum class progress_mode { automatic, always };

/// A bar on standard error with rate and time left; it shows itself only once the work has lasted a
/// moment, and leaves nothing behind. Safe to call from many threads.
class progress_bar {
 public:
  /// `unit` is what update counts: "rows".
  progress_bar(std::string label, std::string unit, progress_mode mode);
  ~progress_bar();
  progress_bar(progress_bar const&) = delete;
  progress_bar& operator=(progress_bar const&) = delete;

  void update(index_t done, index_t total);

 private:
  using clock = std::chrono::steady_clock;
  std::mutex mutex_;
  std::string label_;
  std::string unit_;
  bool enabled_;
  bool drawn_ = false;
  clock::time_point begin_ = clock::now();
  clock::time_point last_ = begin_;
};

}  // namespace moe64::cli
