#pragma once

#include "checkpoint/config/facts.hpp"

#include <string>
#include <vector>

namespace moe64::checkpoint {

/// A key that looks as if it changed what the experts compute, and is not understood.
struct unknown_activation_key {
  std::string key;   ///< as the file spells it
  std::string text;  ///< "config.json: gate_softcap is 4"; safe to print
};

/// What the configs say about the activation of routed experts. What contradicts itself stops only
/// what runs the experts, so it is kept here instead of becoming an error of the checkpoint.
struct activation_facts {
  fact<std::string> function;
  fact<double> alpha;
  fact<double> limit;
  fact<std::vector<double>> limits;  ///< one per layer; 0: it does not clamp
  bool mistral_native = false;       ///< params.json, whose models use silu and do not say so
  bool nothing_read = false;         ///< there is no config at all
  std::vector<unknown_activation_key> unknown;
  std::string contradiction;  ///< the first one, or empty; safe to print
};

struct model_config;
/// `model`: its types are known already.
[[nodiscard]] activation_facts read_activation(config_sources const& sources,
                                               model_config const& model);

}  // namespace moe64::checkpoint
