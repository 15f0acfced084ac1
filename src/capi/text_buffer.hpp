#pragma once

#include "capi/checks.hpp"

#include <algorithm>
#include <string_view>

namespace moe64::capi {

/// Memory of the caller for a text: `bytes` including the final NUL; NULL when it is 0.
class text_buffer {
 public:
  text_buffer(char* data, int64_t bytes, argument const& at) : data_(data), bytes_(bytes) {
    if (bytes < 0 || (data == nullptr && bytes > 0)) {
      fail(errc::invalid_argument, "{} reason is {} with reason_bytes {}", at.text(),
           data == nullptr ? "NULL" : "given", bytes);
    }
  }

  /// Cut where it is longer.
  void assign(std::string_view text) const {
    if (bytes_ == 0) return;
    std::size_t const length = std::min(text.size(), static_cast<std::size_t>(bytes_) - 1);
    std::copy_n(text.data(), length, data_);
    data_[length] = '\0';
  }

 private:
  char* data_;
  int64_t bytes_;
};

}  // namespace moe64::capi
