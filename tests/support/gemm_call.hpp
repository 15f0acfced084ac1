#pragma once

#include "moe64/ops.hpp"
#include "support/buffer.hpp"
#include "support/routing.hpp"
#include "support/weights.hpp"

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace moe64::test {

/// Everything one call needs. Rows past the last expert are NaN.
struct gemm_call {
  struct shape {
    int parts;
    index_t part_rows, cols;
  };
  struct extras {
    bool transpose = false, bias = false;
    index_t rank = 0;
  };
  test_weights weights, low_rank;
  test_tensor expert_begin, x, y, bias[2], u;
  index_t terms;
  grouped_gemm_args args;

  gemm_call(weight_spec const& spec, shape const& s, std::vector<index_t> const& counts, dtype io,
            content what, extras const& extra, std::uint64_t seed = 1) {
    index_t const experts = std::ssize(counts);
    index_t const live = std::accumulate(counts.begin(), counts.end(), index_t{0});
    index_t const capacity = live + 3;
    index_t const rows = s.parts * s.part_rows;
    index_t const depth = extra.transpose ? rows : s.cols;
    index_t const outs = extra.transpose ? s.cols : rows;
    terms = depth + extra.rank;
    weights = make_weights(spec, experts, s.parts, s.part_rows, s.cols, what, seed);
    expert_begin = test::make_expert_begin(counts);
    x = test_tensor(io, {capacity, depth});
    y = test_tensor(io, {capacity, outs});
    fill(x, live, what, seed + 1);
    args = {quantized_view::plain(x), weights.stack, expert_begin, extra.transpose, {}, {}, y};
    for (std::size_t part = 0; extra.bias && part < static_cast<std::size_t>(s.parts); ++part) {
      bias[part] = test_tensor(part == 0 ? dtype::f32 : io, {experts, s.part_rows});
      fill(bias[part], experts, what, seed + 2 + part);
      args.bias[part] = bias[part];
    }
    if (extra.rank > 0) {
      u = test_tensor(io, {capacity, extra.rank});
      fill(u, live, what, seed + 5);
      low_rank =
          extra.transpose
              ? make_weights({io}, experts, 1, extra.rank, s.cols, what, seed + 6)
              : make_weights({io}, experts, s.parts, s.part_rows, extra.rank, what, seed + 6);
      args.low_rank = {u, low_rank.stack, what == content::integers ? 2.0F : 0.7F};
    }
  }

  static void fill(test_tensor& tensor, index_t live, content what, std::uint64_t seed) {
    if (what == content::integers) {
      tensor.fill_integers(seed, -4, 4);
    } else {
      tensor.fill_uniform(seed);
    }
    for (index_t r = live; r < tensor.view().extent[0]; ++r) {
      for (index_t c = 0; c < tensor.view().extent[1]; ++c)
        tensor.set(std::numeric_limits<double>::quiet_NaN(), r, c);
    }
  }
};

}  // namespace moe64::test
