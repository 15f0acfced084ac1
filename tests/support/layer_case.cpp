#include "support/layer_case.hpp"

#include "support/layer_implementations.hpp"
#include "support/random.hpp"
#include "support/routing.hpp"
#include "support/target.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

namespace moe64::test {
namespace {

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

/// Formats with the granularities and scale types that fit them.
void choose_format(layer_case& c, random_source const& random) {
  constexpr weight_format formats[] = {
      weight_format::f32,  weight_format::bf16,  weight_format::f16,
      weight_format::e4m3, weight_format::e5m2,  weight_format::int8,
      weight_format::int4, weight_format::mxfp4, weight_format::nvfp4};
  c.weight = formats[random.below(100, 9)];
  granularity const scales[] = {granularity::tensor(),    granularity::row(),
                                granularity::block(4, 8), granularity::block(3, 5),
                                granularity::group(6),    granularity::block(128, 128)};
  c.scale = scales[random.below(101, 6)];
  if (!is_quantized(value_type(c.weight))) c.scale = granularity::none();
  if (c.weight == weight_format::int4) c.scale = granularity::group(5);
  if (c.weight == weight_format::mxfp4) {
    c.scale = granularity::group(32);
    c.scale_type = dtype::e8m0;
  }
  if (c.weight == weight_format::nvfp4) {
    c.scale = granularity::group(16);
    c.scale_type = dtype::e4m3;
  }
  bool const free_scale = is_quantized(value_type(c.weight)) && c.scale_type == dtype::f32;
  dtype const scale_types[] = {dtype::f32, dtype::bf16, dtype::f16, dtype::e8m0};
  if (free_scale) c.scale_type = scale_types[random.below(102, 4)];
}

void choose_storage(layer_case& c, random_source const& random) {
  c.storage = static_cast<gate_up_storage>(random.below(110, 3));
  c.in_first = bits(value_type(c.weight)) > 4 && random.chance(111, 0.3);
  c.id_type = random.chance(112, 0.5) ? dtype::int32 : dtype::int64;
  dtype const floats[] = {dtype::f32, dtype::bf16, dtype::f16};
  c.weight_type = floats[random.below(113, 3)];
  // Most implementations want the factors of LoRA in the type of x.
  c.parameter_type = random.chance(115, 0.5) ? c.io : floats[random.below(114, 3)];
}

void choose_sizes(layer_case& c, random_source const& random) {
  index_t const widths[] = {1, 2, 7, 16, 17, 33, 48};
  c.hidden = widths[random.below(120, 7)];
  c.inter = widths[random.below(121, 7)];
  index_t const experts = random.between(122, 1, 7);
  c.top_k = random.between(123, 1, std::min<index_t>(experts, 4));
  c.route(random.between(124, 1, 40), experts, random.chance(125, 0.5) ? 0.2 : 0.0);
}

/// Sizes, types and scales that tensor cores take: of the others they refuse nearly all.
void suit_tensor_cores(layer_case& c, random_source const& random) {
  index_t const widths[] = {16, 32, 48, 80};
  c.hidden = widths[random.below(130, 4)];
  c.inter = widths[random.below(131, 4)];
  if (c.io == dtype::f32) c.io = dtype::bf16;
  c.parameter_type = c.io;
  if (!is_quantized(value_type(c.weight))) {
    c.weight = c.io == dtype::bf16 ? weight_format::bf16 : weight_format::f16;
  } else if (c.weight == weight_format::int4) {
    c.scale = granularity::group(32);
  } else if (bits(value_type(c.weight)) == 8) {
    granularity const scales[] = {granularity::tensor(), granularity::row(),
                                  granularity::block(4, 8), granularity::block(128, 128)};
    c.scale = scales[random.below(132, 4)];
  }
  for (index_t* const rank : {&c.lora_gate_up, &c.lora_down}) *rank = *rank > 0 ? 16 : 0;
}

}  // namespace

void layer_case::route(index_t token_count_, index_t expert_count, double sentinels) {
  tokens.clear();
  experts.clear();
  for (index_t t = 0; t < token_count_; ++t) tokens.push_back(t);
  for (index_t e = 0; e < expert_count; ++e) experts.push_back(e);
  ids = random_ids(seed * 31 + 7, token_count_ * top_k, expert_count, sentinels);
  weigh();
}

void layer_case::weigh() {
  weights.clear();
  random_source const random(seed * 31 + 8);
  for (index_t slot = 0; slot < token_count() * top_k; ++slot) {
    double const share = random.uniform(slot, 0.5, 2.0) / static_cast<double>(top_k);
    weights.push_back(is_exact(numbers) ? static_cast<float>(1 << random.below(slot, 3)) * 0.5F
                      : numbers == layer_numbers::grid
                          ? static_cast<float>(std::round(share * 256.0) / 256.0)
                          : static_cast<float>(share));
  }
}

std::string to_string(layer_case const& c) {
  std::ostringstream out;
  constexpr char const* number_names[] = {"random", "integers", "signs", "grid"};
  constexpr char const* storage_names[] = {"concatenated", "interleaved", "separate"};
  out << "seed=" << c.seed << " numbers=" << number_names[static_cast<int>(c.numbers)]
      << " tokens=" << c.token_count() << " hidden=" << c.hidden << " inter=" << c.inter
      << " experts=" << c.experts.size() << " top_k=" << c.top_k
      << " weight=" << name(value_type(c.weight)) << " scale=" << to_string(c.scale)
      << " scale_type=" << name(c.scale_type) << " act=" << name(c.act.kind) << " io=" << name(c.io)
      << " parameters=" << name(c.parameter_type) << " bias=" << c.bias
      << " lora=" << c.lora_gate_up << "," << c.lora_down
      << " weight_on=" << (c.weight_on == weight_placement::input ? "input" : "output")
      << " mode=" << name(c.mode) << " storage=" << storage_names[static_cast<int>(c.storage)]
      << " in_first=" << c.in_first << " padding=" << c.padding << " step=" << c.step
      << " outer=" << c.outer << " id_type=" << name(c.id_type)
      << " weight_type=" << name(c.weight_type) << " capacity=" << c.capacity << " experts ["
      << c.first_expert << ", +" << c.stored_experts() << ")" << (c.doubled ? " doubled" : "")
      << " implementation=" << (c.implementation.empty() ? "best" : c.implementation);
  if (c.ids.size() <= 100) {
    out << " ids=";
    for (index_t const id : c.ids) out << id << " ";
  }
  return out.str();
}

layer_case random_layer_case(std::uint64_t seed) {
  random_source const random(seed);
  layer_case c;
  c.seed = seed;
  dtype const types[] = {dtype::f32, dtype::bf16, dtype::f16};
  c.io = types[random.below(2, 3)];
  choose_sizes(c, random);
  choose_format(c, random);
  choose_storage(c, random);
  c.act = {static_cast<activation>(random.below(1, static_cast<int>(last_activation) + 1)), 1.702F,
           1.0F};
  c.bias = random.chance(3, 0.5);
  index_t const ranks[] = {0, 0, 1, 3, 16};
  c.lora_gate_up = ranks[random.below(4, 5)];
  c.lora_down = ranks[random.below(5, 5)];
  if (random.chance(6, 0.3)) c.weight_on = weight_placement::input;
  if (on_cuda && random.chance(9, 0.5)) suit_tensor_cores(c, random);
  bool const bytes = is_quantized(value_type(c.weight)) && bits(value_type(c.weight)) == 8;
  bool const integers = c.weight == weight_format::int8;  // they alone have products of codes
  if (bytes && random.chance(7, integers ? 0.8 : 0.4)) c.mode = compute_mode::w8a8;
  // The gradient jumps at a limit: where numbers are coarse none may be near it.
  if (c.io != dtype::f32 || c.mode == compute_mode::w8a8) c.act.limit = 50.0F;
  if (random.chance(8, 0.2)) c.weights.clear();
  c.implementation = draw_implementation(c);
  return c;
}

layer_case exact(layer_case c) {
  c.numbers = layer_numbers::integers;
  c.act.kind = activation::relu2;
  c.io = dtype::f32;
  c.parameter_type = dtype::f32;
  if (c.mode == compute_mode::w8a8) c.mode = compute_mode::w8a16;
  if (!c.weights.empty()) c.weigh();
  if (!c.implementation.empty()) c.implementation = draw_implementation(c);
  return c;
}

layer_case with_tokens(layer_case const& c, std::vector<index_t> const& places) {
  layer_case result = c;
  result.outer = 0;
  result.tokens.clear();
  result.ids.clear();
  result.weights.clear();
  for (index_t const t : places) {
    result.tokens.push_back(c.tokens[place(t)]);
    for (index_t slot = t * c.top_k; slot < (t + 1) * c.top_k; ++slot) {
      result.ids.push_back(c.ids[place(slot)]);
      if (!c.weights.empty()) result.weights.push_back(c.weights[place(slot)]);
    }
  }
  return result;
}

layer_case with_experts(layer_case const& c, std::vector<index_t> const& places) {
  layer_case result = c;
  result.experts.clear();
  std::vector<index_t> moved_to(c.experts.size() + 1, -1);
  for (index_t i = 0; i < std::ssize(places); ++i) {
    index_t const from = places[place(i)];
    result.experts.push_back(from == poisoned_expert ? poisoned_expert : c.experts[place(from)]);
    if (from != poisoned_expert) moved_to[place(from)] = i;
  }
  moved_to.back() = std::ssize(places);  // the other sentinel
  for (index_t& id : result.ids) {
    if (id >= 0) id = moved_to[place(id)];
  }
  return result;
}

std::vector<index_t> random_order(std::uint64_t seed, index_t count) {
  std::vector<index_t> order;
  for (index_t i = 0; i < count; ++i) order.push_back(i);
  random_source const random(seed);
  for (index_t i = count - 1; i > 0; --i) {
    std::swap(order[place(i)], order[place(random.below(i, i + 1))]);
  }
  return order;
}

}  // namespace moe64::test
