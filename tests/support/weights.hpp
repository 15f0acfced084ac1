#pragma once

#include "moe64/quant.hpp"
#include "support/buffer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace moe64::test {

/// How weights are stored.
struct weight_spec {
  dtype type = dtype::bf16;
  granularity scale = {};  ///< none for f32, bf16, f16
  dtype scale_type = dtype::f32;
  global_scale::direction global = global_scale::direction::multiply;  ///< fp4 with e4m3 only
  gate_up_layout layout = gate_up_layout::concatenated;                ///< with two parts
  bool in_first = false;  ///< memory is [experts, in, out]; not for packed types

  [[nodiscard]] bool has_global() const { return type == dtype::fp4 && scale_type == dtype::e4m3; }
};
[[nodiscard]] std::string to_string(weight_spec const& spec);

/// Small integers times powers of two, whose sums f32 holds exactly; or all codes and scales.
enum class content { integers, random };

/// Largest |number| of a stack with content::integers.
inline constexpr double largest_integer_weight = 32.0;

struct test_weights {
  test_tensor values, scales;
  test_tensor global[2];
  weight_stack stack;

  /// Give every number of an expert the value NaN (types without NaN: by its scales).
  void poison_expert(index_t expert);
  /// All numbers of the stack, [experts, rows, cols], rounded to `as`.
  [[nodiscard]] std::vector<double> numbers(dtype as) const;
};

[[nodiscard]] test_weights make_weights(weight_spec const& spec, index_t experts, int parts,
                                        index_t part_rows, index_t cols, content what,
                                        std::uint64_t seed);

/// Every value type with granularities and scale types that belong to it.
[[nodiscard]] std::vector<weight_spec> every_weight_format();

}  // namespace moe64::test
