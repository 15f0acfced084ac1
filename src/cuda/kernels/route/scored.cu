#include "cuda/kernels/route/scores.cuh"

/// Routing that computes each score once, into shared memory. Candidates are ranked by integers,
/// which a warp compares by two redux instructions; what was taken ranks below all others.
namespace moe64::cuda {
namespace {

/// A key as an integer that ranks as the CPU's candidates do: NaN below all others, both zeros
/// alike.
using rank = std::uint32_t;
constexpr rank taken = 0;

__device__ rank rank_of(float key) {
  constexpr rank nan = 1;
  constexpr rank sign = 0x80000000U;
  rank const bits = __float_as_uint(key + 0.0F);
  rank const ordered = (bits & sign) != 0 ? ~bits : bits | sign;
  return isnan(key) ? nan : ordered;
}

/// Takes the best of `ranks` within [begin, end), ties to the lower index; warp-uniform. There must
/// be one.
__device__ int take_best(rank* ranks, int begin, int end) {
  rank best = taken;
  int place = end;
  for (int i = begin + lane_id(); i < end; i += 32) {
    if (ranks[i] <= best) continue;
    best = ranks[i];
    place = i;
  }
  rank const best_of_all = __reduce_max_sync(all_lanes, best);
  int const winner = __reduce_min_sync(all_lanes, best == best_of_all ? place : end);
  __syncwarp();
  if (lane_id() == 0) ranks[winner] = taken;
  __syncwarp();
  return winner;
}

/// One warp's share of the shared memory.
struct token_memory {
  float* scores;   ///< [experts]; in the end the weights of the selected
  rank* eligible;  ///< [experts]
  rank* groups;    ///< [groups]
  int* chosen;     ///< [top_k]

  __device__ explicit token_memory(route_parameters const& p) {
    index_t const experts = kept_scores(p.logits.extent[1]);
    scores = warp_memory(
        route_kept(p.logits.extent[1], p.options.expert_groups, p.expert_ids.extent[1]));
    eligible = reinterpret_cast<rank*>(scores + experts);
    groups = eligible + experts;
    chosen = reinterpret_cast<int*>(groups + p.options.expert_groups);
  }
};

class scored_token {
 public:
  __device__ scored_token(route_parameters const& p, index_t token, token_memory const& memory)
      : p_(p),
        token_(token),
        memory_(memory),
        experts_(static_cast<int>(p.logits.extent[1])),      // narrow-ok: supports() asked
        groups_(static_cast<int>(p.options.expert_groups)),  // narrow-ok: at most experts
        top_k_(static_cast<int>(p.expert_ids.extent[1])) {   // narrow-ok: at most experts
    token_scores<true> const scores(p.logits, p.options.score, token, memory.scores);
    for (int e = lane_id(); e < experts_; e += 32) memory_.eligible[e] = rank_of(key(e));
    __syncwarp();
    if (p.options.groups_kept < groups_) drop_groups();
    for (int k = 0; k < top_k_; ++k) {
      int const id = take_best(memory_.eligible, 0, experts_);
      if (lane_id() == 0) memory_.chosen[k] = id;
    }
    __syncwarp();
  }

  __device__ void write() const {
    bool const selected = p_.options.score == scoring::softmax_of_selected;
    if (selected) take_exponentials();
    float sum = 0.0F;
    for (int k = 0; k < top_k_; ++k) sum += memory_.scores[memory_.chosen[k]];
    for (int k = lane_id(); k < top_k_; k += 32) {
      int const id = memory_.chosen[k];
      float weight = memory_.scores[id];
      if (p_.options.renormalize || selected) weight /= sum + renormalize_epsilon;
      store_id(p_.expert_ids, token_, k, id);
      store_float(row_of(p_.weights, token_), k, weight * p_.options.scaling);
    }
    __syncwarp();
  }

 private:
  [[nodiscard]] __device__ float key(int e) const {
    float const score = memory_.scores[e];
    return p_.selection_bias.present() ? score + element<float>(p_.selection_bias, e) : score;
  }

  __device__ void drop_groups() {
    int const size = experts_ / groups_;
    for (int g = 0; g < groups_; ++g) {
      float const group_key = find_group_key(g * size, (g + 1) * size);
      if (lane_id() == 0) memory_.groups[g] = rank_of(group_key);
    }
    __syncwarp();
    for (index_t kept = 0; kept < p_.options.groups_kept; ++kept) {
      static_cast<void>(take_best(memory_.groups, 0, groups_));
    }
    for (int g = 0; g < groups_; ++g) {
      if (memory_.groups[g] == taken) continue;
      for (int e = g * size + lane_id(); e < (g + 1) * size; e += 32) memory_.eligible[e] = taken;
    }
    __syncwarp();
  }

  /// Restores the ranks that it takes.
  [[nodiscard]] __device__ float find_group_key(int begin, int end) {
    int const first = take_best(memory_.eligible, begin, end);
    float sum = key(first);
    if (p_.options.group_by == group_score::top2_sum && end - begin > 1) {
      int const second = take_best(memory_.eligible, begin, end);
      sum += key(second);
      if (lane_id() == 0) memory_.eligible[second] = rank_of(key(second));
    }
    if (lane_id() == 0) memory_.eligible[first] = rank_of(key(first));
    __syncwarp();
    return sum;
  }

  /// The scores of the selected are logits: exp of their differences to the largest one.
  __device__ void take_exponentials() const {
    float largest = -std::numeric_limits<float>::infinity();
    for (int k = lane_id(); k < top_k_; k += 32) {
      largest = fmaxf(largest, memory_.scores[memory_.chosen[k]]);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, distance));
    }
    for (int k = lane_id(); k < top_k_; k += 32) {
      float& score = memory_.scores[memory_.chosen[k]];
      score = exp_f32(score - largest);
    }
    __syncwarp();
  }

  route_parameters const& p_;
  index_t token_;
  token_memory const& memory_;
  int experts_, groups_, top_k_;
};

/// Computes: expert_ids and weights of each token.
/// Grid: a warp per token, grid-stride beyond.
/// Threads: route_warps warps, independent of each other.
/// Shared memory: token_memory for each warp.
/// Limits: at most route_scored_experts; any strides and types.
__global__ void __launch_bounds__(route_warps * 32) route_scored(route_parameters const p) {
  token_memory const memory(p);
  for_each_token(p.logits.extent[0], [&](index_t token) {
    scored_token const routed(p, token, memory);
    routed.write();
  });
}

}  // namespace

kernel<route_parameters> route_scored_kernel() { return {"route_scored", route_scored}; }

}  // namespace moe64::cuda
