#pragma once

#include "moe64/index.hpp"

#include <cstddef>

namespace moe64::cases {

/// Anonymous memory that is promised, not taken: a page costs something only once it is touched, so
/// a stack of many gigabytes of which one expert is used costs that one expert. Starts at a page
/// and reads as zeros.
class mapping {
 public:
  mapping() = default;
  /// Throws errc::out_of_memory when the system refuses the addresses.
  explicit mapping(index_t bytes);
  ~mapping();
  mapping(mapping&& other) noexcept;
  mapping& operator=(mapping&& other) noexcept;
  mapping(mapping const&) = delete;
  mapping& operator=(mapping const&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  /// Whole pages: at least what was asked for.
  [[nodiscard]] index_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  index_t bytes_ = 0;
};

/// Bytes that this process may still touch: most of what the system says is available, or less
/// where a control group allows less.
[[nodiscard]] index_t available_memory();

}  // namespace moe64::cases
