#include "support/places.hpp"

#include "support/layer_case.hpp"
#include "support/random.hpp"

#include <cstring>

namespace moe64::test {
namespace {

std::size_t size(index_t count) { return static_cast<std::size_t>(count); }

}  // namespace

tensor_view placed_weights::array::places() const {
  if (table.empty()) return {};
  return tensor_view::contiguous(table.data(), dtype::int64, {std::ssize(table)});
}

placed_weights::array const& placed_weights::scattered(tensor_view const& of, index_t step_bytes,
                                                       std::uint64_t seed) {
  array& to = arrays_.emplace_back();
  to.view = of;
  if (!of.present() || step_bytes == 0) return to;
  random_source const random(seed);
  index_t const experts = of.extent[0], width = bits(of.type);
  index_t const matrix_bytes = experts == 0 ? 0 : of.slice(0, 0, 1).span_bytes();
  to.table.resize(size(experts));
  index_t next = random.between(0, 1, 3), last = 0;  // the first place is no matrix
  for (index_t const e : random_order(seed, experts)) {
    to.table[size(e)] = last = next;
    next += ceil_div(matrix_bytes, step_bytes) + random.between(e + 1, 1, 3);
  }
  to.view.extent[0] = last + 1;
  to.view.stride[0] = step_bytes * 8 / width;
  to.memory = cpu_buffer(next * step_bytes);
  to.view.data = to.memory.memory().data;
  std::memset(to.view.data, 0xff, size(next * step_bytes));
  for (index_t e = 0; e < experts && matrix_bytes > 0; ++e) {
    std::memcpy(static_cast<std::uint8_t*>(to.view.data) + to.table[size(e)] * step_bytes,
                of.slice(0, e, e + 1).data, size(matrix_bytes));
  }
  return to;
}

quantized_view placed_weights::part(quantized_view const& of, std::uint64_t seed,
                                    steps const& apart) {
  array const& values = scattered(of.values(), apart.values, 2 * seed);
  array const& scales = scattered(of.scales(), apart.scales, 2 * seed + 1);
  expert_places const places = {values.places(), scales.places()};
  if (of.is_plain()) return quantized_view::plain(values.view, places);
  return quantized_view::scaled(values.view, scales.view, of.layout(), of.global(), places);
}

placed_weights::placed_weights(weight_stack const& of, std::uint64_t seed, steps const& apart) {
  quantized_view const first = part(of.part(0), 2 * seed, apart);
  stack = of.parts() == 1 ? weight_stack::single(first)
                          : weight_stack::gate_up(first, part(of.part(1), 2 * seed + 1, apart));
}

index_t& placed_weights::values_place(int part, index_t expert) {
  return arrays_[size(2 * part)].table[size(expert)];
}
index_t& placed_weights::scales_place(int part, index_t expert) {
  return arrays_[size(2 * part + 1)].table[size(expert)];
}

}  // namespace moe64::test
