#include "cuda/gemm/sm90/heuristics.hpp"

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

// The dynamic schedule (docs/experiments/sm90-schedulers.md): the weights of an expert are too
// large for L2 to keep them until its other rows come, and it has some.
constexpr index_t least_dynamic_rows = 161, most_bytes_in_l2 = index_t{8} << 20;

constexpr tile_rule of_bf16[] = {
    {.tile = m32n128, .why = few_rows, .most_rows = 16},
    {.tile = m64n128, .why = some_rows, .most_rows = 48},
    {.tile = m256n128, .why = many_rows},
};

constexpr char const* few_rows_mixed = "up to 16 rows per expert: mma.sync, two CTAs per SM";
constexpr char const* some_rows_mixed = "17 to 48 rows per expert: mma.sync, two CTAs per SM";
constexpr char const* many_rows_mixed =
    "a weight is dequantised once for as many rows as registers hold";

constexpr tile_rule of_w8a16[] = {
    {.tile = m32n128, .why = few_rows_mixed, .most_rows = 16},
    {.tile = m64n128, .why = some_rows_mixed, .most_rows = 48},
    {.tile = m160n128,
     .why = "weights are waited for: fewer rows leave room for more stages",
     .most_rows = 128},
    {.tile = m288n128, .why = many_rows_mixed},
};

constexpr tile_rule of_other_mixed[] = {
    {.tile = m32n128, .why = few_rows_mixed, .most_rows = 16},
    {.tile = m64n128, .why = some_rows_mixed, .most_rows = 48},
    {.tile = m288n128, .why = many_rows_mixed},
};

constexpr tile_rule of_fused_layer[] = {
    {.tile = m8n128, .why = "up to 8 tokens: the deepest pipeline", .most_rows = 8},
    {.tile = m16n128, .why = "an expert may have more than 8 rows"},
};

}  // namespace

bool dynamic_schedule_pays(tile_shape tile, index_t rows_per_expert, index_t expert_bytes) {
  return tile == m256n128 && rows_per_expert >= least_dynamic_rows &&
         expert_bytes > most_bytes_in_l2;
}

std::span<tile_rule const> w8a8_tiles() { return of_w8a8; }
std::span<tile_rule const> bf16_tiles() { return of_bf16; }
std::span<tile_rule const> w8a16_tiles() { return of_w8a16; }
std::span<tile_rule const> w8a16_transposed_tiles() { return of_other_mixed; }
std::span<tile_rule const> w4a16_tiles() { return of_other_mixed; }
std::span<tile_rule const> fused_layer_tiles() { return of_fused_layer; }

tile_rule const& choose_tile(char const* operation, std::span<tile_rule const> rules,
                             gemm_extents const& call, moe64::device where) {
  return cuda::choose_tile(operation, rules, call, where, [](tile_shape) { return true; });
}

}  // namespace moe64::cuda::sm90
