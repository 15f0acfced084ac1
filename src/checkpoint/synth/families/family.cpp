#include "checkpoint/synth/families/family.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <string>

namespace moe64::checkpoint {
namespace {

constexpr synth_release releases[] = {
    {"deepseek-v3", "deepseek-v3", "D1", "FP8 blocks of 128 x 128, F32 scales"},
    {"kimi-k2", "kimi-k2", "D1", "as DeepSeek-V3"},
    {"deepseek-v3.1", "deepseek-v3", "D2", "the same, scales are powers of two"},
    {"deepseek-v4-flash-base", "deepseek-v4", "D3", "FP8 experts under their makers' names"},
    {"deepseek-v4-flash", "deepseek-v4", "D4", "FP4 experts with E8M0 scales"},
    {"glm-4.5", "glm-4.5", "D5", "compressed-tensors FP8, a scale per row"},
    {"glm-4.7-flash", "glm-4.7-flash", "D6", "the same, whole layers are left in BF16"},
    {"glm-5.2", "glm-5.2", "D7", "FP8 blocks"},
    {"qwen3-30b", "qwen3-30b", "D8", "FP8 blocks, BF16 scales"},
    {"qwen3.5", "qwen3.5", "D9", "FP8 blocks below model.language_model"},
    {"qwen3-vl", "qwen3-vl", "D10", "FP8 blocks of transposed stacks"},
    {"minimax-m2", "minimax-m2", "D11", "FP8 blocks, w1 w2 w3"},
    {"minimax-m3", "minimax-m3", "D12", "MXFP8: exponents in U8"},
    {"kimi-k2-thinking", "kimi-k2", "D13", "INT4 in groups of 32"},
    {"gpt-oss", "gpt-oss", "D14", "MXFP4 stacks, gate and up interleaved"},
    {"llama-4", "llama-4", "D15", "compressed-tensors FP8 per expert"},
    {"llama-4-fbgemm", "llama-4", "D16", "FBGEMM FP8 stacks"},
    {"llama-4-modelopt", "llama-4", "D17", "ModelOpt FP8 stacks, one scale for all"},
    {"mixtral", "mixtral", "D18", "FP8, one scale per matrix"},
    {"mixtral-compressed-tensors", "mixtral", "D18b", "the same by llm-compressor"},
    {"qwen3-30b-fp8-block", "qwen3-30b", "D19", "llm-compressor FP8_BLOCK"},
    {"qwen3-30b-modelopt-fp8", "qwen3-30b", "D20", "ModelOpt FP8"},
    {"qwen3-30b-modelopt-row", "qwen3-30b", "D21", "ModelOpt FP8_PER_CHANNEL_PER_TOKEN"},
    {"deepseek-v3-modelopt-block", "deepseek-v3", "D22", "ModelOpt FP8_PB_WO, 4-D scales"},
    {"qwen3.8-nvfp4", "qwen3.8", "D22b", "ModelOpt NVFP4 with an MTP layer in FP8 blocks"},
    {"deepseek-v3-nvfp4", "deepseek-v3", "D23", "ModelOpt NVFP4: the global scale multiplies"},
    {"qwen3-30b-nvfp4", "qwen3-30b", "D24", "compressed-tensors NVFP4: it divides"},
    {"qwen3-30b-mxfp4", "qwen3-30b", "D25a", "compressed-tensors MXFP4"},
    {"qwen3-30b-mxfp8", "qwen3-30b", "D25b", "compressed-tensors MXFP8"},
    {"ling-v3", "ling-v3", "D26", "MXFP4 experts in an FP8 model"},
    {"step-3.5", "step-3.5", "D27", "FP8 blocks of stacks, gate and up apart"},
    {"granite-moe", "granite-moe", "D28", "compressed-tensors FP8 stacks"},
    {"mistral-large-3", "mistral-large-3", "D29", "params.json, one scale per matrix"},
    {"mistral-large-3-hf", "mistral-large-3-hf", "D29b", "the same as Transformers names it"},
    {"olmoe", "olmoe", "D30", "FP8 blocks as Transformers saves them"},
    {"dots1", "dots1", "D31", "another model in the manner of DeepSeek-V3"},
};

std::string all_names() {
  std::string names;
  for (synth_release const& release : releases) {
    names += (names.empty() ? "" : ", ") + std::string(release.like);
  }
  return names;
}

bool is_dialect(std::string_view id) {
  if (id == "plain") return true;
  for (dialect const& row : dialect_table()) {
    if (row.id == id) return true;
  }
  return false;
}

}  // namespace

std::span<synth_release const> synth_releases() noexcept { return releases; }

synth_family const& synth_family_named(std::string_view name) {
  for (auto const list : {synth_mla_families(), synth_gqa_families(), synth_language_families(),
                          synth_native_families()}) {
    for (synth_family const& family : list) {
      if (family.name == name) return family;
    }
  }
  fail(errc::internal, "[synth] there is no family '{}'", name);
}

synth_release synth_release_of(std::string_view like, std::string_view dialect) {
  if (!dialect.empty() && !is_dialect(dialect)) {
    fail(errc::invalid_argument, "[synth] dialect is {}, expected D1 to D31 or plain",
         quoted(dialect, 40));
  }
  if (like.empty() && dialect == "plain") like = "glm-4.7-flash";
  for (synth_release release : releases) {
    bool const wanted = like.empty() ? release.dialect == dialect : release.like == like;
    if (!wanted) continue;
    if (!dialect.empty()) release.dialect = dialect;
    return release;
  }
  if (like.empty()) fail(errc::invalid_argument, "[synth] neither a model nor a dialect is named");
  fail(errc::invalid_argument, "[synth] no model is called {}; there are: {}", quoted(like, 60),
       all_names());
}

}  // namespace moe64::checkpoint
