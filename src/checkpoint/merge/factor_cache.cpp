#include "checkpoint/merge/factor_cache.hpp"

#include <algorithm>

namespace moe64::checkpoint {

std::shared_ptr<std::vector<std::byte> const> factor_cache::get(tensor_entry const& factor) {
  if (factor.bytes > room_) return nullptr;
  std::scoped_lock const lock(mutex_);
  auto const found = std::find_if(kept_.begin(), kept_.end(), [&](kept_factor const& entry) {
    return entry.factor == &factor;
  });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
    return found->bytes;
  }
  index_t used = factor.bytes;
  for (kept_factor const& entry : kept_) used += entry.factor->bytes;
  while (used > room_) {
    used -= kept_.back().factor->bytes;
    kept_.pop_back();
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(factor.bytes));
  adapter_.read(factor, 0, *bytes);
  kept_.push_front({&factor, bytes});
  return bytes;
}

}  // namespace moe64::checkpoint
