#include "moe64/checkpoint.hpp"

#include "capi/checkpoint_handle.hpp"
#include "capi/convert.hpp"
#include "capi/guarded.hpp"
#include "capi/layer_handle.hpp"
#include "moe64/c/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace moe64::capi {
namespace {

checkpoint_options to_cpp(moe64_checkpoint_options const& given, argument const& at) {
  require_zero(given.reserved, at);
  checkpoint_options options;
  options.lenient = flag(given.lenient, at["lenient"]);
  options.follow_links = flag(given.follow_links, at["follow_links"]);
  options.mapped = flag(given.mapped, at["mapped"]);
  if (given.assume_count < 0 || (given.assume == nullptr && given.assume_count > 0)) {
    fail(errc::invalid_argument, "{}.assume is {} with assume_count {}", at.text(),
         given.assume == nullptr ? "NULL" : "given", given.assume_count);
  }
  for (int64_t i = 0; i < given.assume_count; ++i) {
    options.assume.emplace_back(&required(given.assume[i], at["assume"]));
  }
  return options;
}

layer_request to_cpp(moe64_layer_request const& given, argument const& at) {
  require_zero(given.reserved, at);
  return {given.layer, flag(given.mtp, at["mtp"]), given.first_expert, given.experts};
}

std::uint8_t to_flag(bool value) { return value ? 1 : 0; }

moe64_projection_format to_c(projection_description const& given) {
  moe64_projection_format format = {};
  format.rows = given.rows;
  format.cols = given.cols;
  format.layout.kind = static_cast<moe64_scale_kind>(given.layout.kind);
  format.layout.block_rows = given.layout.block_rows;
  format.layout.block_cols = given.layout.block_cols;
  format.dtype = static_cast<moe64_dtype>(given.type);
  format.scale_dtype = static_cast<moe64_dtype>(given.scale_type);
  format.has_global = to_flag(given.has_global);
  format.global = static_cast<moe64_scale_direction>(given.global);
  format.stacked = to_flag(given.stacked);
  format.fused = to_flag(given.fused);
  format.transposed = to_flag(given.transposed);
  format.gate_up = static_cast<moe64_gate_up_layout>(given.gate_up);
  format.has_bias = to_flag(given.has_bias);
  return format;
}

moe64_checkpoint_layer to_c(layer_description const& given) {
  moe64_checkpoint_layer layer = moe64_checkpoint_layer_init();
  layer.layer = given.layer;
  layer.mtp = to_flag(given.mtp);
  layer.sound = to_flag(given.sound);
  layer.problem = given.problem.c_str();
  layer.dialect = given.dialect.c_str();
  layer.experts = given.experts;
  layer.hidden = given.hidden;
  layer.inter = given.inter;
  layer.parameters = given.parameters;
  layer.stored_bytes = given.stored_bytes;
  layer.loaded_bytes = given.loaded_bytes;
  layer.gate = to_c(given.gate);
  layer.up = to_c(given.up);
  layer.down = to_c(given.down);
  return layer;
}

moe64_checkpoint_summary to_c(checkpoint_description const& given) {
  moe64_checkpoint_summary summary = moe64_checkpoint_summary_init();
  summary.model_type = given.model_type.c_str();
  summary.quant_method = given.quant_method.c_str();
  summary.hidden = given.hidden;
  summary.inter = given.inter;
  summary.experts = given.experts;
  summary.top_k = given.top_k;
  summary.shards = given.shards;
  summary.tensors = given.tensors;
  summary.tensor_bytes = given.tensor_bytes;
  summary.expert_layers = std::ssize(given.layer_list);
  summary.expert_parameters = given.expert_parameters;
  summary.expert_bytes = given.expert_bytes;
  summary.weights_found = given.weights_found;
  summary.scales_found = given.scales_found;
  summary.matched = given.matched;
  summary.errors = given.errors;
  summary.warnings = given.warnings;
  return summary;
}

}  // namespace
}  // namespace moe64::capi

using namespace moe64::capi;

extern "C" {

moe64_status moe64_checkpoint_open(const char* path, const moe64_checkpoint_options* options,
                                   moe64_checkpoint** checkpoint) {
  return guarded([&] {
    argument const at("checkpoint_open");
    std::string const name = &required(path, at["path"]);
    moe64::checkpoint_options wanted;
    if (options != nullptr) wanted = to_cpp(sized_copy(options, at["options"]), at["options"]);
    auto& out = required(checkpoint, at["checkpoint"]);
    moe64::checkpoint_reader reader(name, wanted);
    auto findings = reader.findings();
    auto description = describe(reader);
    out = std::make_unique<moe64_checkpoint>(
              moe64_checkpoint{std::move(reader), std::move(findings), std::move(description)})
              .release();
  });
}

void moe64_checkpoint_destroy(moe64_checkpoint* checkpoint) { delete checkpoint; }

moe64_status moe64_checkpoint_finding_count(const moe64_checkpoint* checkpoint, int64_t* count) {
  return guarded([&] {
    argument const at("checkpoint_finding_count");
    auto const& opened = required(checkpoint, at["checkpoint"]);
    required(count, at["count"]) = std::ssize(opened.findings);
  });
}

moe64_status moe64_checkpoint_finding_at(const moe64_checkpoint* checkpoint, int64_t i,
                                         moe64_checkpoint_finding* finding) {
  return guarded([&] {
    argument const at("checkpoint_finding_at");
    auto const& opened = required(checkpoint, at["checkpoint"]);
    auto const& found = numbered(std::span(opened.findings), i, at);
    moe64_checkpoint_finding answer = moe64_checkpoint_finding_init();
    answer.rule = found.rule.c_str();
    answer.tensor = found.tensor.c_str();
    answer.text = found.text.c_str();
    answer.level = static_cast<moe64_finding_level>(found.level);
    answer_into(required(finding, at["finding"]), answer, at["finding"]);
  });
}

moe64_status moe64_checkpoint_summarize(const moe64_checkpoint* checkpoint,
                                        moe64_checkpoint_summary* summary) {
  return guarded([&] {
    argument const at("checkpoint_summarize");
    auto const& opened = required(checkpoint, at["checkpoint"]);
    answer_into(required(summary, at["summary"]), to_c(opened.description), at["summary"]);
  });
}

moe64_status moe64_checkpoint_layer_at(const moe64_checkpoint* checkpoint, int64_t i,
                                       moe64_checkpoint_layer* layer) {
  return guarded([&] {
    argument const at("checkpoint_layer_at");
    auto const& opened = required(checkpoint, at["checkpoint"]);
    auto const& found = numbered(std::span(opened.description.layer_list), i, at);
    answer_into(required(layer, at["layer"]), to_c(found), at["layer"]);
  });
}

moe64_status moe64_layer_bytes(const moe64_checkpoint* checkpoint,
                               const moe64_layer_request* request, int64_t* bytes) {
  return guarded([&] {
    argument const at("layer_bytes");
    auto const& opened = required(checkpoint, at["checkpoint"]);
    auto const wanted = to_cpp(sized_copy(request, at["request"]), at["request"]);
    auto& out = required(bytes, at["bytes"]);
    out = moe64::layer_bytes(opened.reader, wanted);
  });
}

moe64_status moe64_load_layer(const moe64_checkpoint* checkpoint,
                              const moe64_layer_request* request, const moe64_workspace* memory,
                              moe64_stream stream, moe64_progress progress, void* user_data,
                              moe64_layer** layer) {
  return guarded([&] {
    argument const at("load_layer");
    auto const& opened = required(checkpoint, at["checkpoint"]);
    auto const wanted = to_cpp(sized_copy(request, at["request"]), at["request"]);
    auto const lent = to_cpp(required(memory, at["memory"]), at["memory"]);
    auto const where = to_cpp(stream, at["stream"]);
    auto& out = required(layer, at["layer"]);
    auto created = std::make_unique<moe64_layer>();
    created->desc = moe64::load_layer(opened.reader, wanted, lent, where,
                                      report_to("load_layer", progress, user_data));
    out = created.release();
  });
}

}  // extern "C"
