#pragma once

#include "checkpoint/merge/adapter.hpp"

#include <list>
#include <memory>
#include <mutex>
#include <vector>

namespace moe64::checkpoint {

/// Factors B of stacks of experts, of which every expert has some numbers in each row: kept in
/// memory, the last used ones, for all threads.
class factor_cache {
 public:
  factor_cache(adapter_files const& adapter, index_t bytes) : adapter_(adapter), room_(bytes) {}

  [[nodiscard]] index_t room() const noexcept { return room_; }
  /// The bytes of a factor; null when there is not so much room.
  [[nodiscard]] std::shared_ptr<std::vector<std::byte> const> get(tensor_entry const& factor);

 private:
  struct kept_factor {
    tensor_entry const* factor;
    std::shared_ptr<std::vector<std::byte> const> bytes;
  };
  adapter_files const& adapter_;
  index_t room_;
  std::mutex mutex_;
  std::list<kept_factor> kept_;  ///< the last used one first
};

}  // namespace moe64::checkpoint
