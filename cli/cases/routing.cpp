#include "cases/routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace moe64::cases {
namespace {

bool contains(std::span<index_t const> ids, index_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

/// Chooses the experts of one token after another.
class chooser {
 public:
  chooser(problem const& p, std::uint64_t seed) : p_(p), seed_(seed) {
    if (p.routing != routing_kind::zipf) return;
    double sum = 0.0;
    for (index_t e = 0; e < p.experts; ++e) {
      sum += 1.0 / static_cast<double>(e + 1);
      share_below_.push_back(sum);
    }
  }

  /// ids [top_k]
  void choose(index_t token, std::span<index_t> ids) const {
    for (index_t k = 0; k < p_.top_k; ++k) {
      auto const place = static_cast<std::size_t>(k);
      index_t const slot = token * p_.top_k + k;
      auto const chosen = ids.first(place);
      ids[place] = p_.routing == routing_kind::one_expert ? p_.experts - 1
                   : p_.routing == routing_kind::zipf     ? by_popularity(slot, chosen)
                                                          : evenly(slot, k, chosen);
    }
  }

 private:
  /// Floyd's sampling: every set of top_k experts is equally likely.
  [[nodiscard]] index_t evenly(index_t slot, index_t k, std::span<index_t const> chosen) const {
    std::uint64_t const hash = random_bits(seed_, tensor_id::expert_ids, slot);
    auto const experts = static_cast<std::uint64_t>(p_.experts);
    if (p_.top_k > p_.experts) return static_cast<index_t>(hash % experts);
    index_t const last = p_.experts - p_.top_k + k;
    auto const id = static_cast<index_t>(hash % static_cast<std::uint64_t>(last + 1));
    return contains(chosen, id) ? last : id;
  }

  [[nodiscard]] index_t by_popularity(index_t slot, std::span<index_t const> chosen) const {
    std::uint64_t const hash = random_bits(seed_, tensor_id::expert_ids, slot);
    double const draw = static_cast<double>(hash >> 11U) * 0x1p-53 * share_below_.back();
    auto const found = std::upper_bound(share_below_.begin(), share_below_.end() - 1, draw);
    index_t id = found - share_below_.begin();
    if (p_.top_k > p_.experts) return id;
    while (contains(chosen, id)) id = (id + 1) % p_.experts;
    return id;
  }

  problem const& p_;
  std::uint64_t seed_;
  std::vector<double> share_below_;  // zipf: sum of 1 / (e + 1) up to and with expert e
};

/// -1, the number of experts, or the id itself.
index_t with_sentinels(problem const& p, std::uint64_t seed, index_t slot, index_t id) {
  if (p.routing != routing_kind::sentinel) return id;
  std::uint64_t const hash = random_bits(seed, tensor_id::sentinels, slot);
  if (static_cast<double>(hash >> 11U) * 0x1p-53 >= p.sentinel_share) return id;
  return hash % 2 == 0 ? -1 : p.experts;
}

void store_id(tensor_view const& ids, index_t slot, index_t id) {
  if (ids.type == dtype::int32) {
    static_cast<std::int32_t*>(ids.data)[slot] = narrow<std::int32_t>(id);
  } else {
    static_cast<std::int64_t*>(ids.data)[slot] = id;
  }
}

}  // namespace

index_t routed_tokens::rows_of(index_t expert) const {
  auto const e = static_cast<std::size_t>(expert);
  return rows.expert_begin[e + 1] - rows.expert_begin[e];
}

index_t routed_tokens::expert_of(index_t row) const {
  auto const after = std::upper_bound(rows.expert_begin.begin(), rows.expert_begin.end(), row);
  return after - rows.expert_begin.begin() - 1;
}

double routed_tokens::weight_of(index_t row) const {
  index_t const slot = rows.row_to_slot[static_cast<std::size_t>(row)];
  return static_cast<float const*>(weights.data)[slot];
}

std::vector<index_t> routed_tokens::experts_of_token(index_t token) const {
  std::vector<index_t> found;
  index_t const top_k = expert_ids.extent[1];
  for (index_t slot = token * top_k; slot < (token + 1) * top_k; ++slot) {
    index_t const row = rows.slot_to_row[static_cast<std::size_t>(slot)];
    if (row >= 0) found.push_back(expert_of(row));
  }
  return found;
}

std::vector<index_t> routed_tokens::used_experts() const {
  std::vector<index_t> used;
  for (index_t e = 0; e < experts(); ++e) {
    if (rows_of(e) > 0) used.push_back(e);
  }
  return used;
}

routed_tokens make_routing(arena& memory, problem const& p, data_mode data, index_t draw) {
  std::uint64_t const seed = p.seed + static_cast<std::uint64_t>(draw) * 0x9e3779b97f4a7c15U;
  routed_tokens routed;
  bool const narrow_ids = p.seed % 2 == 0 && p.experts < std::numeric_limits<std::int32_t>::max();
  routed.expert_ids = memory.tensor("expert_ids", purpose::input,
                                    narrow_ids ? dtype::int32 : dtype::int64, {p.tokens, p.top_k});
  routed.weights = memory.tensor("weights", purpose::input, dtype::f32, {p.tokens, p.top_k});

  double const even = 1.0 / static_cast<double>(p.top_k);
  auto const source = data == data_mode::exact
                          ? number_source::one_of(dtype::f32, {0.5, 1.0})
                          : number_source::spread(dtype::f32, 0.5 * even, 2.0 * even);
  source.fill(routed.weights, seed, tensor_id::slot_weights, nullptr);

  chooser const choice(p, seed);
  std::vector<index_t> ids(static_cast<std::size_t>(p.top_k));
  for (index_t token = 0; token < p.tokens; ++token) {
    choice.choose(token, ids);
    if (draw == 0 && token == p.tokens - 1) {
      auto const last = std::find(ids.begin(), ids.end(), p.experts - 1);
      if (last != ids.end()) *last = ids.back();
      ids.back() = p.experts - 1;
    }
    for (index_t k = 0; k < p.top_k; ++k) {
      index_t const slot = token * p.top_k + k;
      store_id(routed.expert_ids, slot,
               with_sentinels(p, seed, slot, ids[static_cast<std::size_t>(k)]));
    }
  }
  routed.rows = oracle::plan(routed.expert_ids, p.experts, 0, p.experts, -1);
  return routed;
}

routing_plan make_plan(arena& memory, problem const& p, routed_tokens const& routed) {
  index_t const bytes = plan_bytes(p.tokens, p.top_k, p.experts);
  void* const data = memory.allocate("plan", purpose::input, bytes);
  routing_plan plan = bind_plan({data, bytes, memory.device()}, p.tokens, p.top_k, p.experts);
  auto const store = [](tensor_view const& to, std::vector<index_t> const& from) {
    std::copy(from.begin(), from.end(), static_cast<std::int64_t*>(to.data));
  };
  store(plan.expert_begin, routed.rows.expert_begin);
  store(plan.row_to_slot, routed.rows.row_to_slot);
  store(plan.slot_to_row, routed.rows.slot_to_row);
  for (index_t row = routed.live(); row < plan.slots(); ++row) {
    static_cast<std::int64_t*>(plan.row_to_slot.data)[row] = -1;
  }
  for (index_t slot = 0; slot < plan.slots(); ++slot) {
    bool const kept = routed.rows.slot_to_row[static_cast<std::size_t>(slot)] >= 0;
    static_cast<float*>(plan.slot_weight.data)[slot] =
        kept ? static_cast<float const*>(routed.weights.data)[slot] : 0.0F;
  }
  store(plan.status, {routed.live(), routed.rows.skipped, 0, 0, 0, -1});
  return plan;
}

}  // namespace moe64::cases
