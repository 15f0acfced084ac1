#include "core/number.hpp"
#include "core/view.hpp"
#include "cpu/plan/plan.hpp"
#include "cpu/runtime/parallel.hpp"

#include <algorithm>
#include <type_traits>

/// A stable counting sort in three steps: every chunk of tokens counts its slots per expert, the
/// counts become places, every chunk puts its slots there. The result is the same for any cut, and
/// the cut depends on the problem alone.
namespace moe64::cpu {
namespace {

/// What a chunk counts behind its experts: slots that go to none of them.
struct others {
  static constexpr index_t skipped = 0;
  static constexpr index_t elsewhere = 1;
  static constexpr index_t invalid = 2;
  static constexpr index_t first_invalid = 3;
  static constexpr index_t count = 4;
};

struct token_chunks {
  index_t chunks;
  index_t tokens;  ///< per chunk
};

/// A chunk has slots enough to pay for a task, and for a counter of each expert: counters take at
/// most a tenth of the memory of the plan.
token_chunks cut_tokens(index_t tokens, index_t top_k, index_t experts) {
  constexpr index_t fewest_slots = 8192;
  constexpr index_t slots_per_expert = 4;
  constexpr index_t most_chunks = 256;
  index_t const slots = std::max(fewest_slots, slots_per_expert * experts);
  index_t const chunks = std::clamp<index_t>(tokens * top_k / slots, 1, most_chunks);
  index_t const each = std::max<index_t>(1, ceil_div(tokens, chunks));
  return {std::max<index_t>(1, ceil_div(tokens, each)), each};
}

struct every_weight_one {
  static float get(void const*, index_t) noexcept { return 1.0F; }
};

/// The steps for ids of type Id; uint8 is a mask, a row of ids that are -1 where nothing is chosen.
template <class Id>
class counting_sort {
 public:
  explicit counting_sort(plan_args const& args)
      : args_(args),
        cut_(cut_tokens(args.plan.tokens, args.plan.top_k, args.plan.experts)),
        experts_(args.plan.experts),
        ids_(as<Id, 2>(args.expert_ids.present() ? args.expert_ids : args.expert_mask)),
        counts_(as<std::int64_t, 2>(tensor_view::contiguous(args.scratch.data, dtype::int64,
                                                            {cut_.chunks, experts_ + others::count},
                                                            device::cpu()))),
        begin_(as<std::int64_t, 1>(args.plan.expert_begin)) {}

  void run(stream where) const {
    parallel_for(where, cut_.chunks, [&](index_t chunk) { count(chunk); });
    refuse_invalid();
    turn_into_places(where);
    write_status();
    if (!args_.weights.present()) return scatter<every_weight_one>(where);
    if (args_.weights.type == dtype::bf16) return scatter<bf16_number>(where);
    if (args_.weights.type == dtype::f16) return scatter<f16_number>(where);
    scatter<f32_number>(where);
  }

 private:
  /// visit(token, k, id, local): local is below the number of experts for exactly the ids that this
  /// plan serves, which are always legal. What the loop needs is copied, because what the visitor
  /// writes could be a member for all the compiler knows.
  template <class Visit>
  void for_each_slot(index_t chunk, Visit const& visit) const {
    auto const ids = ids_;
    index_t const top_k = args_.plan.top_k;
    auto const first_expert = static_cast<std::uint64_t>(args_.first_expert);
    index_t const begin = chunk * cut_.tokens;
    index_t const end = std::min(args_.plan.tokens, begin + cut_.tokens);
    for (index_t token = begin; token < end; ++token) {
      for (index_t k = 0; k < top_k; ++k) {
        index_t id = ids(token, k);
        if constexpr (std::is_same_v<Id, std::uint8_t>) id = id != 0 ? k : -1;
        visit(token, k, id, static_cast<std::uint64_t>(id) - first_expert);
      }
    }
  }

  void count(index_t chunk) const {
    std::int64_t* const counts = &counts_(chunk, 0);
    std::fill_n(counts, experts_ + others::count, 0);
    std::int64_t* const of_none = counts + experts_;
    auto const experts = static_cast<std::uint64_t>(experts_);
    index_t const total = args_.experts_total;
    index_t const top_k = args_.plan.top_k;
    for_each_slot(chunk, [=](index_t token, index_t k, index_t id, std::uint64_t expert) {
      if (expert < experts) {
        ++counts[expert];
      } else if (id == -1 || id == total) {
        ++of_none[others::skipped];
      } else if (id >= 0 && id < total) {
        ++of_none[others::elsewhere];
      } else if (of_none[others::invalid]++ == 0) {
        of_none[others::first_invalid] = token * top_k + k;
      }
    });
  }

  [[nodiscard]] index_t sum_of(index_t what) const {
    index_t sum = 0;
    for (index_t chunk = 0; chunk < cut_.chunks; ++chunk) sum += counts_(chunk, experts_ + what);
    return sum;
  }

  /// Nothing is written before every id is known to be legal.
  void refuse_invalid() const {
    index_t const count = sum_of(others::invalid);
    if (count == 0) return;
    index_t chunk = 0;
    while (counts_(chunk, experts_ + others::invalid) == 0) ++chunk;
    refuse_ids(args_, count, counts_(chunk, experts_ + others::first_invalid));
  }

  /// counts(chunk, e): the place of the chunk's first slot among those of expert e; expert_begin
  /// as in the plan.
  void turn_into_places(stream where) const {
    index_t const bytes = cut_.chunks * index_t{16};
    parallel_ranges(where, experts_, bytes, [&](index_t first, index_t last) {
      for (index_t e = first; e < last; ++e) begin_(e + 1) = 0;
      for (index_t chunk = 0; chunk < cut_.chunks; ++chunk) {
        for (index_t e = first; e < last; ++e) {
          index_t const count = counts_(chunk, e);
          counts_(chunk, e) = begin_(e + 1);
          begin_(e + 1) += count;
        }
      }
    });
    begin_(0) = 0;
    for (index_t e = 0; e < experts_; ++e) {
      index_t const kept =
          args_.capacity >= 0 ? std::min(begin_(e + 1), args_.capacity) : begin_(e + 1);
      begin_(e + 1) = begin_(e) + kept;
    }
  }

  void write_status() const {
    auto const status = as<std::int64_t, 1>(args_.plan.status);
    index_t const kept = begin_(experts_);
    index_t const skipped = sum_of(others::skipped);
    index_t const elsewhere = sum_of(others::elsewhere);
    status(plan_status::kept) = kept;
    status(plan_status::skipped) = skipped;
    status(plan_status::elsewhere) = elsewhere;
    status(plan_status::dropped) = args_.plan.slots() - kept - skipped - elsewhere;
    status(plan_status::invalid) = 0;
    status(plan_status::first_invalid) = -1;
  }

  template <class Weight>
  void scatter(stream where) const {
    parallel_for(where, cut_.chunks, [&](index_t chunk) { scatter_chunk<Weight>(chunk); });
  }

  template <class Weight>
  void scatter_chunk(index_t chunk) const {
    auto const row_to_slot = as<std::int64_t, 1>(args_.plan.row_to_slot);
    auto const slot_to_row = as<std::int64_t, 1>(args_.plan.slot_to_row);
    auto const slot_weight = as<float, 1>(args_.plan.slot_weight);
    std::int64_t* const next_row = &counts_(chunk, 0);
    for (index_t e = 0; e < experts_; ++e) next_row[e] += begin_(e);
    auto const begin = begin_;
    auto const experts = static_cast<std::uint64_t>(experts_);
    index_t const top_k = args_.plan.top_k;
    tensor_view const weights = args_.weights;
    for_each_slot(chunk, [=](index_t token, index_t k, index_t, std::uint64_t expert) {
      index_t const slot = token * top_k + k;
      index_t row = -1;
      float weight = 0.0F;
      if (expert < experts) {
        index_t const next = next_row[expert]++;
        if (next < begin(expert + 1)) {  // within its capacity
          row = next;
          row_to_slot(row) = slot;
          weight = Weight::get(weights.data, offset_of(weights, token, k));
        }
      }
      slot_to_row(slot) = row;
      slot_weight(slot) = weight;
    });
  }

  plan_args const& args_;
  token_chunks cut_;
  index_t experts_;
  view<Id, 2> ids_;
  view<std::int64_t, 2> counts_;
  view<std::int64_t, 1> begin_;
};

}  // namespace

void plan_parallel(plan_args const& args, stream where) {
  if (!args.expert_ids.present()) {
    counting_sort<std::uint8_t>(args).run(where);
  } else if (args.expert_ids.type == dtype::int32) {
    counting_sort<std::int32_t>(args).run(where);
  } else {
    counting_sort<std::int64_t>(args).run(where);
  }
}

index_t plan_parallel_scratch_bytes(index_t tokens, index_t top_k, index_t experts) {
  index_t const counters = checked_add(experts, others::count);
  return checked_mul(checked_mul(cut_tokens(tokens, top_k, experts).chunks, counters),
                     index_t{sizeof(std::int64_t)});
}

}  // namespace moe64::cpu
