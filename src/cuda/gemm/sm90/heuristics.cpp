#include "cuda/gemm/sm90/heuristics.hpp"

#include "core/verbose.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace moe64::cuda::sm90 {
namespace {

using enum tile_shape;

constexpr char const* few_rows = "up to 16 rows per expert: swapAB, deepest pipeline";
constexpr char const* some_rows = "17 to 48 rows per expert: swapAB, tail rows cost 8 at a time";
constexpr char const* many_rows = "the most products for each byte of shared memory";

constexpr tile_rule of_w8a8[] = {
    {.tile = m32n128, .why = few_rows, .most_rows = 16},
    {.tile = m64n128, .why = some_rows, .most_rows = 48},
    {.tile = m256n128,
     .why = "k of at most 512: prologues and epilogues cost most, and few tiles have fewest",
     .most_k = 512},
    {.tile = m128n192,
     .why = "k below 1024: fewer epilogues than m256n128, written by TMA stores",
     .least_rows = 177,
     .most_k = 1023},
    {.tile = m256n128, .why = "k below 1024, rows that m128n192 would pad", .most_k = 1023},
    {.tile = m192n128,
     .why = "three consumer warpgroups keep the tensor cores busy while they promote",
     .most_rows = 160},
    {.tile = m192n128_tma_store,
     .why = "rows fill tiles of 192 better than tiles of 256",
     .least_rows = 273,
     .most_rows = 368},
    {.tile = m192n128_tma_store,
     .why = "small experts: weights stay in the L2 cache, so smaller tiles cost nothing",
     .least_rows = 369,
     .most_k = 2048,
     .most_n = 4096},
    {.tile = m256n128, .why = many_rows},
};

constexpr tile_rule of_bf16[] = {
    {.tile = m32n128, .why = few_rows, .most_rows = 16},
    {.tile = m64n128, .why = some_rows, .most_rows = 48},
    {.tile = m256n128, .why = many_rows},
};

constexpr tile_rule of_w8a16[] = {
    {.tile = m32n128, .why = few_rows, .most_rows = 16},
    {.tile = m64n128, .why = some_rows, .most_rows = 48},
    {.tile = m160n128,
     .why = "weights are waited for: fewer rows leave room for more stages",
     .most_rows = 128},
    {.tile = m288n128, .why = "a weight is dequantised once for as many rows as registers hold"},
};

constexpr tile_rule of_small_and_large[] = {
    {.tile = m32n128, .why = few_rows, .most_rows = 16},
    {.tile = m64n128, .why = some_rows, .most_rows = 48},
    {.tile = m288n128, .why = "a weight is dequantised once for as many rows as registers hold"},
};

}  // namespace

std::span<tile_rule const> w8a8_tiles() { return of_w8a8; }
std::span<tile_rule const> bf16_tiles() { return of_bf16; }
std::span<tile_rule const> w8a16_tiles() { return of_w8a16; }
std::span<tile_rule const> small_and_large_tiles() { return of_small_and_large; }

tile_rule const& choose_tile(std::span<tile_rule const> rules, gemm_extents const& call,
                             moe64::device where) {
  auto const found = std::find_if(rules.begin(), rules.end(),
                                  [&](tile_rule const& rule) { return rule.takes(call); });
  tile_rule const& rule = found == rules.end() ? rules.back() : *found;
  if (verbose_level() >= 2) {
    print_chosen("grouped_gemm", where, name(rule.tile),
                 fmt::format("{} rows per expert, k={} n={}: {}", call.rows_per_expert, call.k,
                             call.n, rule.why));
  }
  return rule;
}

}  // namespace moe64::cuda::sm90
