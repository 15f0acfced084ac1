#include "progress.hpp"

#include "fmt/format.h"
#include "terminal.hpp"

#include <cstdio>
#include <unistd.h>
#include <utility>

namespace moe64::cli {

progress_bar::progress_bar(std::string label, std::string unit, progress_mode mode)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      enabled_(mode == progress_mode::always || isatty(STDERR_FILENO) == 1) {
  if (label_.size() > 32) label_ = label_.substr(0, 29) + "...";
}

progress_bar::~progress_bar() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void progress_bar::update(index_t done, index_t total) {
  if (!enabled_ || total <= 0) return;
  std::scoped_lock const lock(mutex_);
  auto const now = clock::now();
  if (now - last_ < std::chrono::milliseconds(200)) return;
  last_ = now;
  double const elapsed = std::chrono::duration<double>(now - begin_).count();
  double const share = static_cast<double>(done) / static_cast<double>(total);
  double const rate = static_cast<double>(done) / elapsed;
  double const left = share > 0.0 ? elapsed * (1.0 - share) / share : 0.0;
  constexpr int width = 24;
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < width * share ? '#' : '.';
  fmt::print(stderr, "\r{} [{}] {:3.0f} %  {:.1f} {}/s  {} left\x1b[K", label_, bar, 100.0 * share,
             rate, unit_, human_seconds(left));
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace moe64::cli
