#pragma once

#include "moe64/checkpoint.hpp"
#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/index.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace moe64 {

/// What to make. The same options give the same bytes, on any machine and with any number of
/// threads.
struct synth_options {
  std::string like = {};     ///< a name of synth_models(); empty: chosen by `dialect`
  std::string dialect = {};  ///< "D13", or "plain"; empty: the one of the model
  index_t scale_down = 16;   ///< extents, layers and experts are divided by it; 1: the real ones
  index_t layers = 0;        ///< of the backbone; 0: by scale_down
  std::uint64_t seed = 1;
  index_t shard_bytes = 0;  ///< about; a file has at least a tensor. 0: three files
  bool mtp = false;         ///< with a layer of multi-token prediction, where the model has one
  std::string fault = {};   ///< a kind of synth_faults(), planted once; empty: none
};

/// What was made.
struct synth_report {
  std::string like;
  std::string model_type;
  std::vector<std::string> dialects;  ///< ids in use, "plain" among them
  index_t hidden = 0;
  index_t inter = 0;
  index_t experts = 0;
  index_t layers = 0;
  index_t moe_layers = 0;  ///< MTP layers aside
  index_t tensors = 0;
  index_t parameters = 0;  ///< numbers that the weights stand for
  index_t bytes = 0;       ///< of the tensors
  index_t shards = 0;
  std::string fault;         ///< the sentence that says what was planted, or empty
  std::string fault_tensor;  ///< the tensor that it was planted in, or empty
};

/// Writes a small checkpoint of random weights in the dialect of a model family: every tensor that
/// the model has, quantised experts and plain bf16 for the rest, and the config files that go with
/// them. `out` is made, or is an empty folder. The index comes last: until then a reader sees no
/// checkpoint. Needs the memory of one expert's matrix as f32 and as codes per thread.
/// errc::invalid_argument for options that no model fits, errc::io_failure when it cannot be
/// written.
MOE64_API synth_report synthesize(std::string const& out, synth_options const& options,
                                  stream where, progress_report const& progress = {});

struct synth_model {
  std::string like;     ///< "glm-4.7-flash"
  std::string dialect;  ///< "D6"
  std::string text;     ///< a line about it
};
/// All names that synth_options::like takes.
[[nodiscard]] MOE64_API std::vector<synth_model> synth_models();

struct synth_fault {
  std::string kind;  ///< "dropped-scale"
  std::string text;  ///< what is wrong then
  bool value;        ///< opening the checkpoint cannot tell: only check() does
};
/// All kinds that synth_options::fault takes.
[[nodiscard]] MOE64_API std::vector<synth_fault> synth_faults();

}  // namespace moe64
