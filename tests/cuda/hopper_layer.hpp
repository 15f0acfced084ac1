#pragma once

#include "cuda/hopper_product.hpp"
#include "moe64/cpu.hpp"
#include "moe64/layer.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

namespace moe64::test {

[[nodiscard]] inline bool all_finite(std::vector<std::uint16_t> const& bf16) {
  return std::all_of(bf16.begin(), bf16.end(),
                     [](std::uint16_t b) { return (b & 0x7f80U) < 0x7f80U; });
}

/// Of a call, except its tokens.
struct hopper_call {
  index_t capacity = -1;
  workspace saved = {};
};

/// A layer of random numbers and a long batch of tokens on the first CUDA device, of which any
/// range can be run with any of several routings. Its products are those of Hopper.
class hopper_layer {
 public:
  struct size {
    index_t hidden, inter, experts, top_k, tokens;
  };
  using routing = std::function<index_t(index_t token, index_t k)>;

  hopper_layer(product kind, size const& s, std::vector<routing> const& routings)
      : size_(s),
        pool_(static_cast<index_t>(std::max(1U, std::thread::hardware_concurrency()))),
        memory_(device::cuda(0)),
        queue_(device::cuda(0)),
        y_(s.tokens * s.hidden * 2, device::cuda(0)) {
    product_source const source(memory_, kind, cases::data_mode::random, &pool_);
    layer_desc layer;
    layer.gate_up.weights = source.weights(matrices::gate_up(s.experts, s.hidden, s.inter));
    layer.down.weights = source.weights(matrices::down(s.experts, s.hidden, s.inter), "down",
                                        cases::tensor_id::down);
    layer.mode = kind == product::w8a8   ? compute_mode::w8a8
                 : kind == product::bf16 ? compute_mode::native
                                         : compute_mode::w8a16;
    layer.implementation = hopper_implementation(kind);
    forward_args args;
    args.x = memory_.tensor("x", cases::purpose::input, dtype::bf16, {s.tokens, s.hidden});
    cases::number_source::normal(dtype::bf16, 1.0).fill(args.x, 3, cases::tensor_id::x, &pool_);
    args.weights =
        memory_.tensor("weights", cases::purpose::input, dtype::f32, {s.tokens, s.top_k});
    cases::number_source::spread(dtype::f32, 0.1, 0.9)
        .fill(args.weights, 3, cases::tensor_id::slot_weights, &pool_);
    std::vector<forward_args> all;
    for (routing const& expert : routings) {
      args.expert_ids =
          memory_.tensor("ids", cases::purpose::input, dtype::int32, {s.tokens, s.top_k});
      auto* const ids = static_cast<std::int32_t*>(args.expert_ids.data);
      for (index_t slot = 0; slot < s.tokens * s.top_k; ++slot) {
        ids[slot] = narrow<std::int32_t>(expert(slot / s.top_k, slot % s.top_k));
      }
      all.push_back(args);
    }
    memory_.upload();
    layer_ = memory_.there(layer);
    for (forward_args const& one : all) calls_.push_back(memory_.there(one));
    scratch_.emplace(scratch_bytes(s.tokens), device::cuda(0));
  }

  /// Another implementation of the products; none: the layer chooses, and may make all calls at
  /// once.
  void choose(std::string_view implementation) { layer_.implementation = implementation; }

  /// Queue tokens [begin, end) of a routing; y begins with the first of them. All memory that the
  /// layer may write is NaN before.
  void queue_run(std::size_t which, index_t begin, index_t end,
                 hopper_call const& also = {}) const {
    cuda_fill(y_.memory().data, 0xff, y_.memory().bytes, queue());
    cuda_fill(scratch_->memory().data, 0xff, scratch_bytes(end - begin), queue());
    if (also.saved.bytes > 0) cuda_fill(also.saved.data, 0xff, also.saved.bytes, queue());
    queue_forward(ids(which), begin, end, also);
  }
  /// Only the layer itself, with `expert_ids` [all tokens, top_k] int32 of the device.
  void queue_forward(tensor_view const& expert_ids, index_t begin, index_t end,
                     hopper_call const& also = {}) const {
    forward_args args = calls_.front();
    for (tensor_view* tensor : {&args.x, &args.weights}) *tensor = tensor->slice(0, begin, end);
    args.expert_ids = expert_ids.slice(0, begin, end);
    args.y = tensor_view::contiguous(y_.memory().data, dtype::bf16, {end - begin, size_.hidden},
                                     device::cuda(0));
    args.scratch = {scratch_->memory().data, scratch_bytes(end - begin), device::cuda(0)};
    args.capacity = also.capacity;
    args.saved = also.saved;
    forward(layer_, args, queue());
  }
  [[nodiscard]] index_t bytes_to_save(index_t tokens) const {
    return saved_bytes(layer_, {tokens, size_.top_k, dtype::bf16}, device::cuda(0));
  }
  /// Rows [begin, end) of y, when everything queued is done.
  [[nodiscard]] std::vector<std::uint16_t> y(index_t begin, index_t end) const {
    std::vector<std::uint16_t> rows(static_cast<std::size_t>((end - begin) * size_.hidden));
    auto const* const first =
        static_cast<std::uint16_t const*>(y_.memory().data) + begin * size_.hidden;
    cuda_copy(rows.data(), first, std::ssize(rows) * 2, queue());
    cuda_wait(queue());
    return rows;
  }
  [[nodiscard]] tensor_view const& ids(std::size_t which) const {
    return calls_.at(which).expert_ids;
  }
  [[nodiscard]] stream queue() const { return queue_.get(); }

 private:
  [[nodiscard]] index_t scratch_bytes(index_t tokens) const {
    return forward_bytes(layer_, {tokens, size_.top_k, dtype::bf16}, false, device::cuda(0));
  }

  size size_;
  cpu_pool pool_;
  cases::arena memory_;
  cuda_queue queue_;
  cuda_buffer y_;
  layer_desc layer_;
  std::vector<forward_args> calls_;
  std::optional<cuda_buffer> scratch_;
};

}  // namespace moe64::test
