// Any ids are either planned, with the invariants of a routing plan and the rows of the oracle, or
// refused as a whole with nothing written.

#include "moe64/cpu.hpp"
#include "moe64/error.hpp"
#include "moe64/ops.hpp"
#include "oracle/oracle.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using moe64::dtype;
using moe64::index_t;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_plan(moe64::routing_plan const& plan, moe64::oracle::planned const& expected) {
  auto const* const begin = static_cast<std::int64_t const*>(plan.expert_begin.data);
  auto const* const row_to_slot = static_cast<std::int64_t const*>(plan.row_to_slot.data);
  auto const* const slot_to_row = static_cast<std::int64_t const*>(plan.slot_to_row.data);
  for (index_t e = 0; e <= plan.experts; ++e) {
    require(begin[e] == expected.expert_begin[static_cast<std::size_t>(e)]);
  }
  for (index_t row = 0; row < begin[plan.experts]; ++row) {
    require(row_to_slot[row] == expected.row_to_slot[static_cast<std::size_t>(row)]);
    require(slot_to_row[row_to_slot[row]] == row);
  }
  for (index_t slot = 0; slot < plan.slots(); ++slot) {
    require(slot_to_row[slot] == expected.slot_to_row[static_cast<std::size_t>(slot)]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size < 5) return 0;
  index_t const top_k = data[0] % 9 + 1;
  index_t const total = data[1];
  index_t const first = data[2];
  index_t const experts = data[3];
  index_t const capacity = static_cast<index_t>(data[4]) - 1;
  // One byte per id: -3..252, so that sentinels, legal ids and bad ones all occur.
  index_t const tokens = static_cast<index_t>(size - 5) / top_k;
  std::vector<std::int64_t> ids;
  for (index_t i = 0; i < tokens * top_k; ++i) ids.push_back(std::int64_t{data[5 + i]} - 3);
  auto const view = moe64::tensor_view::contiguous(ids.data(), dtype::int64, {tokens, top_k});

  moe64::cpu_buffer const memory(moe64::plan_bytes(tokens, top_k, experts));
  std::memset(memory.memory().data, 0x5a, static_cast<std::size_t>(memory.memory().bytes));
  std::vector<unsigned char> const before(
      static_cast<unsigned char*>(memory.memory().data),
      static_cast<unsigned char*>(memory.memory().data) + memory.memory().bytes);
  moe64::cpu_buffer const scratch(
      moe64::plan_scratch_bytes(tokens, top_k, experts, moe64::device::cpu()));
  moe64::plan_args const args = {.expert_ids = view,
                                 .experts_total = total,
                                 .first_expert = first,
                                 .capacity = capacity,
                                 .plan = moe64::bind_plan(memory.memory(), tokens, top_k, experts),
                                 .scratch = scratch.memory()};
  try {
    moe64::plan(args, moe64::cpu_stream());
  } catch (moe64::error const&) {
    require(std::memcmp(before.data(), memory.memory().data, before.size()) == 0);
    return 0;
  }
  check_plan(args.plan, moe64::oracle::plan(view, total, first, experts, capacity));
  return 0;
}
