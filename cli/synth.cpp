#include "moe64/synth.hpp"

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "interrupt.hpp"
#include "moe64/cpu.hpp"
#include "nlohmann/json.hpp"
#include "terminal.hpp"
#include "verbs.hpp"

#include <cstdio>

namespace moe64::cli {
namespace {

using json = nlohmann::ordered_json;

void print_json(json const& object) {
  fmt::print("{}\n", object.dump(-1, ' ', true, json::error_handler_t::replace));
}

void list_text() {
  std::vector<std::vector<std::string>> models = {{"--like", "dialect", "what it is"}};
  for (synth_model const& model : synth_models()) {
    models.push_back({model.like, model.dialect, model.text});
  }
  fmt::print("{}\n", table(models));
  std::vector<std::vector<std::string>> faults = {{"--break", "seen by", "what is wrong then"}};
  for (synth_fault const& fault : synth_faults()) {
    faults.push_back({fault.kind, fault.value ? "check" : "inspect", fault.text});
  }
  fmt::print("{}", table(faults));
}

void list_json() {
  json object;
  object["models"] = json::array();
  for (synth_model const& model : synth_models()) {
    object["models"].push_back(
        {{"like", model.like}, {"dialect", model.dialect}, {"text", model.text}});
  }
  object["faults"] = json::array();
  for (synth_fault const& fault : synth_faults()) {
    object["faults"].push_back(
        {{"kind", fault.kind}, {"value", fault.value}, {"text", fault.text}});
  }
  print_json(object);
}

json json_of(std::string const& out, synth_options const& options, synth_report const& made) {
  json object;
  object["path"] = out;
  object["like"] = made.like;
  object["model_type"] = made.model_type;
  object["dialects"] = made.dialects;
  object["seed"] = options.seed;
  object["scale_down"] = options.scale_down;
  object["hidden"] = made.hidden;
  object["inter"] = made.inter;
  object["experts"] = made.experts;
  object["layers"] = made.layers;
  object["moe_layers"] = made.moe_layers;
  object["tensors"] = made.tensors;
  object["parameters"] = made.parameters;
  object["bytes"] = made.bytes;
  object["shards"] = made.shards;
  if (!made.fault.empty()) {
    object["fault"] = {
        {"kind", options.fault}, {"text", made.fault}, {"tensor", made.fault_tensor}};
  }
  return object;
}

void print_text(std::string const& out, synth_options const& options, synth_report const& made) {
  fmt::print("{}: {} in {}\n", printable(out), made.like,
             printable(fmt::format("{}", fmt::join(made.dialects, ", "))));
  fmt::print("  {} layers, {} of them with {} experts of [{}, {}]\n", made.layers, made.moe_layers,
             made.experts, made.inter, made.hidden);
  fmt::print("  {} tensors, {} parameters, {} in {} file{}, seed {}\n", made.tensors,
             made.parameters, human_bytes(static_cast<double>(made.bytes)), made.shards,
             made.shards == 1 ? "" : "s", options.seed);
  if (made.fault.empty()) return;
  fmt::print("  planted: {}: {} ({})\n", options.fault, made.fault, printable(made.fault_tensor));
}

}  // namespace

exit_code synth(synth_request const& request) {
  if (request.list) {
    request.json ? list_json() : list_text();
    return exit_code::ok;
  }
  if (request.out.empty()) {
    throw error(errc::invalid_argument, "[synth] OUT is missing: the folder to write");
  }
  synth_options options = request.options;
  if (options.like.empty() && options.dialect.empty()) options.like = "glm-4.7-flash";
  cpu_pool pool(request.threads);
  synth_report made;
  {
    interrupt_watch const watch;
    progress_bar bar("synth", "bytes", request.progress);
    made = synthesize(request.out, options, cpu_stream(&pool), [&](index_t done, index_t total) {
      watch.check();
      bar.update(done, total);
    });
  }
  request.json ? print_json(json_of(request.out, options, made))
               : print_text(request.out, options, made);
  return exit_code::ok;
}

}  // namespace moe64::cli
