#include "moe64/error.hpp"
#include "oracle/oracle.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace moe64::oracle {
namespace {

/// Ids are read as integers: a double would round those past 2^53 to their neighbours.
index_t id_at(tensor_view const& ids, index_t token, index_t k) {
  index_t const offset = token * ids.stride[0] + k * ids.stride[1];
  auto const* bytes = static_cast<std::byte const*>(ids.data);
  if (ids.type == dtype::int32) {
    std::int32_t id = 0;
    std::memcpy(&id, bytes + offset * 4, sizeof(id));
    return id;
  }
  std::int64_t id = 0;
  std::memcpy(&id, bytes + offset * 8, sizeof(id));
  return id;
}

}  // namespace

planned plan(tensor_view const& expert_ids, index_t experts_total, index_t first_expert,
             index_t experts, index_t capacity) {
  index_t const tokens = expert_ids.extent[0];
  index_t const top_k = expert_ids.extent[1];
  planned result;
  result.slot_to_row.resize(static_cast<std::size_t>(tokens * top_k), -1);
  std::vector<std::vector<index_t>> slots_of(static_cast<std::size_t>(experts));
  for (index_t slot = 0; slot < tokens * top_k; ++slot) {
    index_t const id = id_at(expert_ids, slot / top_k, slot % top_k);
    if (id == -1 || id == experts_total) {
      ++result.skipped;
    } else if (id < 0 || id > experts_total) {
      throw error(errc::invalid_expert, "[oracle plan] slot " + std::to_string(slot) + " has id " +
                                            std::to_string(id) + " of " +
                                            std::to_string(experts_total) + " experts");
    } else if (id < first_expert || id >= first_expert + experts) {
      ++result.elsewhere;
    } else {
      auto& slots = slots_of[static_cast<std::size_t>(id - first_expert)];
      if (capacity >= 0 && std::ssize(slots) >= capacity) {
        ++result.dropped;
      } else {
        slots.push_back(slot);
      }
    }
  }
  result.expert_begin.push_back(0);
  for (auto const& slots : slots_of) {
    for (index_t const slot : slots) {
      result.slot_to_row[static_cast<std::size_t>(slot)] = std::ssize(result.row_to_slot);
      result.row_to_slot.push_back(slot);
    }
    result.expert_begin.push_back(std::ssize(result.row_to_slot));
  }
  return result;
}

}  // namespace moe64::oracle
