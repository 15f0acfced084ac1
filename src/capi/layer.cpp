#include "moe64/c/layer.h"

#include "capi/convert.hpp"
#include "capi/guarded.hpp"
#include "capi/layer_handle.hpp"
#include "capi/text_buffer.hpp"

#include <memory>
#include <string>

namespace moe64::capi {
namespace {

projection to_cpp(moe64_projection const& given, argument const& at) {
  require_zero(given.lora.reserved, at["lora"]);
  return {.weights = required(given.weights, at["weights"]).stack,
          .bias = to_cpp(given.bias, at["bias"]),
          .lora = {.a = optional_stack(given.lora.a),
                   .b = optional_stack(given.lora.b),
                   .scaling = given.lora.scaling}};
}

layer_desc to_cpp(moe64_layer_desc const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {.gate_up = to_cpp(given.gate_up, at["gate_up"]),
          .down = to_cpp(given.down, at["down"]),
          .activation = to_cpp(given.activation, at["activation"]),
          .mode = enumerator(given.mode, compute_mode::native, at["mode"]),
          .scheme = enumerator(given.scheme, activation_scheme::dynamic, at["scheme"]),
          .weight_on = enumerator(given.weight_on, weight_placement::input, at["weight_on"]),
          .experts_total = given.experts_total,
          .first_expert = given.first_expert};
}

moe64_projection_view view_of(projection const& given) {
  moe64_projection_view view = {};
  for (int part = 0; part < given.weights.parts(); ++part) {
    view.parts[part] = to_c(given.weights.part(part));
  }
  view.bias[0] = to_c(given.bias[0]);
  view.bias[1] = to_c(given.bias[1]);
  return view;
}

layer_shape to_cpp(moe64_layer_shape const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {.tokens = given.tokens,
          .top_k = given.top_k,
          .io = enumerator(given.io, dtype::uint8, at["io"])};
}

forward_args to_cpp(moe64_forward_args const& given, argument const& at) {
  return {.x = to_cpp(given.x, at["x"]),
          .expert_ids = to_cpp(given.expert_ids, at["expert_ids"]),
          .weights = to_cpp(given.weights, at["weights"]),
          .capacity = given.capacity,
          .y = to_cpp(given.y, at["y"]),
          .saved = to_cpp(given.saved, at["saved"]),
          .scratch = to_cpp(given.scratch, at["scratch"])};
}

projection_gradients to_cpp(moe64_projection_gradients const& given, argument const& at) {
  return {.weights = to_cpp(given.weights, at["weights"]),
          .bias = to_cpp(given.bias, at["bias"]),
          .lora_a = to_cpp(given.lora_a, at["lora_a"]),
          .lora_b = to_cpp(given.lora_b, at["lora_b"])};
}

layer_gradients to_cpp(moe64_layer_gradients const* given, argument const& at) {
  auto const copy = sized_copy(given, at);
  return {.x = to_cpp(copy.x, at["x"]),
          .weights = to_cpp(copy.weights, at["weights"]),
          .gate_up = to_cpp(copy.gate_up, at["gate_up"]),
          .down = to_cpp(copy.down, at["down"])};
}

backward_args to_cpp(moe64_backward_args const& given, argument const& at) {
  return {.x = to_cpp(given.x, at["x"]),
          .dy = to_cpp(given.dy, at["dy"]),
          .top_k = given.top_k,
          .saved = to_cpp(given.saved, at["saved"]),
          .scratch = to_cpp(given.scratch, at["scratch"]),
          .gradients = to_cpp(given.gradients, at["gradients"])};
}

/// moe64_quantized has no room for places, and without them it would be another stack.
void check_look(weight_stack const& weights, argument const& at) {
  for (int part = 0; part < weights.parts(); ++part) {
    if (!weights.part(part).places().present()) continue;
    fail(errc::unsupported, "{} has its experts at places, which a view does not show", at.text());
  }
}

}  // namespace
}  // namespace moe64::capi

using namespace moe64::capi;

extern "C" {

moe64_status moe64_layer_create(const moe64_layer_desc* desc, moe64_layer** layer) {
  return guarded([&] {
    argument const at("layer_create");
    auto const given = sized_copy(desc, at["desc"]);
    auto& out = required(layer, at["layer"]);
    auto created = std::make_unique<moe64_layer>();
    created->desc = to_cpp(given, at);
    created->implementation = optional_text(given.implementation);
    created->desc.implementation = created->implementation;
    out = created.release();
  });
}

void moe64_layer_destroy(moe64_layer* layer) { delete layer; }

moe64_status moe64_layer_look(const moe64_layer* layer, moe64_layer_view* view) {
  return guarded([&] {
    argument const at("layer_look");
    auto const& desc = required(layer, at["layer"]).desc;
    check_look(desc.gate_up.weights, at["layer"]["gate_up"]);
    check_look(desc.down.weights, at["layer"]["down"]);
    moe64_layer_view answer = moe64_layer_view_init();
    answer.gate_up = view_of(desc.gate_up);
    answer.down = view_of(desc.down);
    answer.activation.kind = static_cast<moe64_activation>(desc.activation.kind);
    answer.activation.alpha = desc.activation.alpha;
    answer.activation.limit = desc.activation.limit;
    answer.mode = static_cast<moe64_compute_mode>(desc.mode);
    answer.scheme = static_cast<moe64_activation_scheme>(desc.scheme);
    answer.weight_on = static_cast<moe64_weight_placement>(desc.weight_on);
    answer.experts_total = desc.experts_total;
    answer.first_expert = desc.first_expert;
    answer_into(required(view, at["view"]), answer, at["view"]);
  });
}

moe64_status moe64_resolve_mode(const moe64_layer* layer, moe64_dtype io, moe64_device device,
                                moe64_compute_mode* mode, char* reason, int64_t reason_bytes) {
  return guarded([&] {
    argument const at("resolve_mode");
    auto const& desc = required(layer, at["layer"]).desc;
    auto& out = required(mode, at["mode"]);
    text_buffer const text(reason, reason_bytes, at);
    auto const type = enumerator(io, moe64::dtype::uint8, at["io"]);
    auto const choice = moe64::resolve_mode(desc, type, to_cpp(device, at["device"]));
    out = static_cast<moe64_compute_mode>(choice.mode);
    text.assign(choice.reason);
  });
}

moe64_status moe64_saved_bytes(const moe64_layer* layer, const moe64_layer_shape* shape,
                               moe64_device device, int64_t* bytes) {
  return guarded([&] {
    argument const at("saved_bytes");
    auto const& desc = required(layer, at["layer"]).desc;
    auto const extents = to_cpp(required(shape, at["shape"]), at["shape"]);
    auto& out = required(bytes, at["bytes"]);
    out = moe64::saved_bytes(desc, extents, to_cpp(device, at["device"]));
  });
}

moe64_status moe64_forward_bytes(const moe64_layer* layer, const moe64_layer_shape* shape,
                                 uint8_t keeps_saved, moe64_device device, int64_t* bytes) {
  return guarded([&] {
    argument const at("forward_bytes");
    auto const& desc = required(layer, at["layer"]).desc;
    auto const extents = to_cpp(required(shape, at["shape"]), at["shape"]);
    bool const keeps = flag(keeps_saved, at["keeps_saved"]);
    auto& out = required(bytes, at["bytes"]);
    out = moe64::forward_bytes(desc, extents, keeps, to_cpp(device, at["device"]));
  });
}

moe64_status moe64_forward(const moe64_layer* layer, const moe64_forward_args* args,
                           moe64_stream stream) {
  return guarded([&] {
    argument const at("forward");
    auto const& desc = required(layer, at["layer"]).desc;
    auto const given = sized_copy(args, at["args"]);
    moe64::forward(desc, to_cpp(given, at), to_cpp(stream, at["stream"]));
  });
}

moe64_status moe64_saved_plan(const moe64_layer* layer, const moe64_layer_shape* shape,
                              const moe64_workspace* saved, moe64_routing_plan* plan) {
  return guarded([&] {
    argument const at("saved_plan");
    auto const& desc = required(layer, at["layer"]).desc;
    auto const extents = to_cpp(required(shape, at["shape"]), at["shape"]);
    auto const lent = to_cpp(required(saved, at["saved"]), at["saved"]);
    auto& out = required(plan, at["plan"]);
    out = to_c(moe64::saved_plan(desc, extents, lent));
  });
}

moe64_status moe64_backward_bytes(const moe64_layer* layer, const moe64_layer_shape* shape,
                                  const moe64_layer_gradients* gradients, moe64_device device,
                                  int64_t* bytes) {
  return guarded([&] {
    argument const at("backward_bytes");
    auto const& desc = required(layer, at["layer"]).desc;
    auto const extents = to_cpp(required(shape, at["shape"]), at["shape"]);
    auto const wanted = to_cpp(gradients, at["gradients"]);
    auto& out = required(bytes, at["bytes"]);
    out = moe64::backward_bytes(desc, extents, wanted, to_cpp(device, at["device"]));
  });
}

moe64_status moe64_backward(const moe64_layer* layer, const moe64_backward_args* args,
                            moe64_stream stream) {
  return guarded([&] {
    argument const at("backward");
    auto const& desc = required(layer, at["layer"]).desc;
    auto const given = sized_copy(args, at["args"]);
    moe64::backward(desc, to_cpp(given, at), to_cpp(stream, at["stream"]));
  });
}

}  // extern "C"
