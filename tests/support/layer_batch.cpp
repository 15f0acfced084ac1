#include "support/layer_batch.hpp"

#include <cstring>
#include <numeric>

namespace moe64::test {
namespace {

layer_shape shape_of(layer_memory const& whole, std::vector<index_t> const& places) {
  return {std::ssize(places), whole.shape.top_k, whole.shape.io};
}

layer_gradients gradients_of(layer_memory const& whole, bool parameters) {
  layer_gradients wanted = whole.backward.gradients;
  if (!parameters) wanted.gate_up = wanted.down = {};
  return wanted;
}

void poison(workspace const& memory) {
  if (memory.bytes > 0) std::memset(memory.data, 0xff, static_cast<std::size_t>(memory.bytes));
}

}  // namespace

layer_batch::layer_batch(layer_memory const& whole, std::vector<index_t> const& places,
                         bool parameters)
    : desc_(whole.desc),
      saved_(saved_bytes(whole.desc, shape_of(whole, places), target().device)),
      forward_scratch_(forward_bytes(whole.desc, shape_of(whole, places), true, target().device)),
      backward_scratch_(backward_bytes(whole.desc, shape_of(whole, places),
                                       gradients_of(whole, parameters), target().device)) {
  index_t const tokens = std::ssize(places);
  forward_.x = rows_of(whole.forward.x, places);
  forward_.expert_ids = rows_of(whole.forward.expert_ids, places);
  if (whole.forward.weights.present()) forward_.weights = rows_of(whole.forward.weights, places);
  forward_.capacity = whole.forward.capacity;
  forward_.y = like(whole.forward.y.as_matrix(), tokens);
  forward_.saved = saved_.memory();
  forward_.scratch = forward_scratch_.memory();
  backward_.x = forward_.x;
  backward_.dy = rows_of(whole.backward.dy, places);
  backward_.top_k = whole.shape.top_k;
  backward_.saved = forward_.saved;
  backward_.scratch = backward_scratch_.memory();
  layer_gradients wanted = gradients_of(whole, parameters);
  backward_.gradients.x = like(wanted.x.as_matrix(), tokens);
  backward_.gradients.weights = like(wanted.weights, tokens);
  outputs_ = {
      {"y", forward_.y}, {"dx", backward_.gradients.x}, {"d_weights", backward_.gradients.weights}};
  auto const own = [&](std::string const& name, tensor_view const& given, tensor_view& mine) {
    if (!given.present()) return;
    mine = like(given, given.extent[0]);
    outputs_.emplace_back(name, mine);
  };
  auto const own_all = [&](std::string const& base, projection_gradients const& given,
                           projection_gradients& mine) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::string const part = "." + std::to_string(i);
      own(base + ".weights" + part, given.weights[i], mine.weights[i]);
      own(base + ".bias" + part, given.bias[i], mine.bias[i]);
      own(base + ".lora_b" + part, given.lora_b[i], mine.lora_b[i]);
    }
    own(base + ".lora_a", given.lora_a, mine.lora_a);
  };
  own_all("gate_up", wanted.gate_up, backward_.gradients.gate_up);
  own_all("down", wanted.down, backward_.gradients.down);
}

tensor_view layer_batch::like(tensor_view const& view, index_t entries) {
  std::vector<index_t> extents(view.extent, view.extent + view.rank);
  extents[0] = entries;
  return tensors_.emplace_back(view.type, extents);
}

tensor_view layer_batch::rows_of(tensor_view const& tokens, std::vector<index_t> const& places) {
  tensor_view const from = tokens.as_matrix();
  tensor_view const to = like(from, std::ssize(places));
  index_t const bytes = bits(from.type) / 8;
  for (index_t t = 0; t < to.extent[0]; ++t) {
    index_t const row = places[static_cast<std::size_t>(t)] * from.stride[0];
    for (index_t i = 0; i < to.extent[1]; ++i) {
      std::memcpy(static_cast<char*>(to.data) + (t * to.stride[0] + i) * bytes,
                  static_cast<char const*>(from.data) + (row + i * from.stride[1]) * bytes,
                  static_cast<std::size_t>(bytes));
    }
  }
  return to;
}

void layer_batch::run(std::string_view implementation, target_stream where) {
  for (auto const& output : outputs_) {
    tensor_view const& view = output.second;  // contiguous
    std::memset(view.data, 0xff, static_cast<std::size_t>(view.span_bytes()));
  }
  for (cpu_buffer const* memory : {&saved_, &forward_scratch_, &backward_scratch_}) {
    poison(memory->memory());
  }
  desc_.implementation = implementation;
  forward(desc_, forward_, where);
  backward(desc_, backward_, where);
}

layer_result layer_batch::result() const {
  layer_result found;
  for (auto const& [name, view] : outputs_) found.bits[name] = bits_of(view);
  return found;
}

std::vector<index_t> all_tokens(layer_case const& c) {
  std::vector<index_t> places(c.tokens.size());
  std::iota(places.begin(), places.end(), 0);
  return places;
}

}  // namespace moe64::test
