#include "checkpoint/dialect/layer_resolver.hpp"
#include "checkpoint/dialect/resolved_checkpoint.hpp"
#include "checkpoint/files/folder.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

class checkpoint_resolver {
 public:
  checkpoint_resolver(std::span<tensor_entry const> tensors, config_sources const& sources,
                      resolve_options const& options)
      : options_(options), partial_(sources.partial) {
    result_.found = findings(options.kept_per_rule);
    result_.assumed = options.assumed.texts;
    result_.config = read_model_config(sources, result_.found);
    inventory_ = take_inventory(tensors, result_.config, result_.found);
  }

  resolved_checkpoint resolve() {
    result_.activation_scales = inventory_.activation_scales;
    result_.shared_expert_tensors = inventory_.shared_expert_tensors;
    result_.other_tensors = inventory_.other_tensors;
    module_resolver modules(result_.config, options_.assumed, result_.found);
    resolve_layers(modules);
    resolve_dense(modules);
    check_layers();
    check_orientation();
    find_activations();
    list_dialects();
    return std::move(result_);
  }

 private:
  void resolve_layers(module_resolver& modules) {
    fact<index_t> const& stated = result_.config.geometry.experts;
    index_t const experts = options_.assumed.experts.value_or(stated ? stated->value : 0);
    layer_resolver layers(modules, experts, result_);
    std::span<module_tensors const> const all = inventory_.experts;
    for (std::size_t begin = 0; begin < all.size();) {
      std::size_t end = begin;
      while (end < all.size() && all[end].mtp == all[begin].mtp &&
             all[end].layer == all[begin].layer) {
        ++end;
      }
      layers.add(all.subspan(begin, end - begin));
      begin = end;
    }
  }

  void resolve_dense(module_resolver& modules) {
    for (module_tensors const& module : inventory_.dense) {
      auto const format = modules.resolve(module);
      bool const codes = module.values() != nullptr && !is_plain(module.values()->type);
      result_.weights_found += codes ? 1 : 0;
      result_.scales_found += scale_of(module) != nullptr ? 1 : 0;
      if (!format) continue;
      result_.matched += codes ? 1 : 0;
      result_.dense.push_back(
          {module.module, *format, module.values(), scale_of(module), global_of(module)});
    }
  }

  /// Layers that the config has and the files have not, and the other way round.
  void check_layers() {
    auto const& flags = result_.config.moe_layers;
    std::vector<bool> seen(flags.size(), false);
    index_t mtp = 0;
    for (layer_entry const& layer : result_.layers) {
      mtp += layer.mtp ? 1 : 0;
      if (layer.mtp || layer.layer >= static_cast<index_t>(flags.size())) continue;
      auto const i = static_cast<std::size_t>(layer.layer);
      seen[i] = true;
      if (flags[i]) continue;
      result_.found.warning("unexpected-layer", "", "layer {} has experts, but {} makes it dense",
                            layer.layer, result_.config.moe_layers_source);
    }
    if (result_.layers.empty()) {
      result_.found.error(errc::unsupported, "no-experts", "",
                          "no tensor is named like a routed expert");
      return;
    }
    if (partial_) return;
    for (std::size_t i = 0; i < flags.size(); ++i) {
      if (!flags[i] || seen[i]) continue;
      result_.found.error(errc::invalid_argument, "missing-layer", "",
                          "layer {} has no experts, but {} says that it has", i,
                          result_.config.moe_layers_source);
    }
    fact<index_t> const& stated = result_.config.geometry.mtp_layers;
    if (stated && stated->value != mtp) {
      result_.found.warning("mtp-layers", "", "{} is {}, but {} MTP layers with experts are there",
                            stated->source, stated->value, mtp);
    }
  }

  /// Where shapes cannot tell rows from columns, a reader must be told that nothing was checked.
  void check_orientation() {
    for (layer_entry const& layer : result_.layers) {
      if (!layer.sound || !is_stacked(layer.schema)) continue;
      index_t const hidden = layer.gate.format.cols;
      index_t const inter = layer.gate.format.rows;
      if (hidden != inter && hidden != 2 * inter) continue;
      result_.found.note("orientation-not-inferable", layer.gate.experts.front().values->name,
                         "layer {}: hidden {} and inter {} look the same transposed; {} was taken "
                         "from {}",
                         layer.layer, hidden, inter,
                         layer.gate.module.transposed ? "[in, out]" : "[out, in]",
                         options_.assumed.transposed ? "the assumption" : "the model type");
    }
  }

  /// Nothing but running the experts needs it, so that what is not clear is no error here.
  void find_activations() {
    std::vector<std::string_view> told;
    for (layer_entry& layer : result_.layers) {
      bool const gated = is_gated(layer.schema);
      layer.activation =
          activation_of(result_.config, options_.assumed, {layer.layer, layer.mtp, gated});
      std::string_view const refusal = layer.activation.refusal;
      if (refusal.empty() || std::find(told.begin(), told.end(), refusal) != told.end()) continue;
      told.push_back(refusal);
      result_.found.warning("unknown-activation", "", "{} (only running the experts needs it)",
                            refusal);
    }
    share_activation();
    for (std::string const& key : options_.assumed.ignored) {
      auto const& unknown = result_.config.activation.unknown;
      bool const used = std::any_of(unknown.begin(), unknown.end(),
                                    [&](auto const& entry) { return entry.key == key; });
      if (used) continue;
      result_.found.warning("unused-assumption", "",
                            "ignore={}: no config has such a key that is not understood",
                            escaped(key, 60));
    }
  }

  void share_activation() {
    auto const& layers = result_.layers;
    if (layers.empty()) return;
    auto const& first = layers.front().activation.spec;
    bool const shared = first && std::all_of(layers.begin(), layers.end(), [&](auto const& layer) {
                          auto const& spec = layer.activation.spec;
                          return spec && same_activation(*first, *spec);
                        });
    if (shared) result_.activation = first;
  }

  void list_dialects() {
    auto const add = [&](std::string_view id) {
      auto& ids = result_.dialects;
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    };
    for (layer_entry const& layer : result_.layers) {
      if (layer.sound) add(layer.dialect);
    }
  }

  resolve_options const& options_;
  bool partial_;
  module_inventory inventory_;
  resolved_checkpoint result_;
};

}  // namespace

layer_entry const* resolved_checkpoint::layer(index_t number, bool mtp) const noexcept {
  for (layer_entry const& entry : layers) {
    if (entry.layer == number && entry.mtp == mtp) return &entry;
  }
  return nullptr;
}

resolved_checkpoint resolve(std::span<tensor_entry const> tensors, config_sources const& sources,
                            resolve_options const& options) {
  return checkpoint_resolver(tensors, sources, options).resolve();
}

resolved_checkpoint resolve(folder const& opened, resolve_options const& options) {
  config_sources const sources = {opened.config(), opened.hf_quant_config(), opened.params(),
                                  opened.is_single_file()};
  return resolve(opened.tensors(), sources, options);
}

void require_sound(resolved_checkpoint const& resolved) {
  if (resolved.sound()) return;
  for (finding const& entry : resolved.found.kept()) {
    if (entry.level != finding_level::error) continue;
    index_t const others = resolved.found.count(finding_level::error) - 1;
    if (others == 0) fail(entry.code, "[checkpoint] {}", entry.text);
    fail(entry.code, "[checkpoint] {} (and {} more errors)", entry.text, others);
  }
  fail(errc::invalid_argument, "[checkpoint] {} errors",
       resolved.found.count(finding_level::error));
}

}  // namespace moe64::checkpoint
