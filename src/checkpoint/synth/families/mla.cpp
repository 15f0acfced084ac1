#include "checkpoint/synth/families/blocks.hpp"
#include "checkpoint/synth/families/family.hpp"

namespace moe64::checkpoint {
namespace {

using namespace synth_blocks;
using enum key_schema;

constexpr std::string_view indexer = R"(
~.self_attn.indexer.wq_b.weight index_heads*index_dim q_rank
~.self_attn.indexer.wk.weight index_dim hidden
~.self_attn.indexer.k_norm.weight index_dim
~.self_attn.indexer.k_norm.bias index_dim
~.self_attn.indexer.weights_proj.weight index_heads hidden
)";

constexpr synth_family families[] = {
    {.name = "deepseek-v3",
     .model_type = "deepseek_v3",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .mtp = mtp_naming::numbered,
     .extents =
         "hidden=7168 inter=2048 dense_inter=18432 experts=256 top_k=8 layers=61 dense=3 heads=128 "
         "kv_heads=128 q_rank=1536 kv_rank=512 nope=128 rope=64 v_dim=128 vocab=129280 groups=8 "
         "kept_groups=4",
     .tensors = {ends, mla, deepseek_mlp, numbered_mtp},
     .config = {R"("architectures": ["DeepseekV3ForCausalLM"],
  "model_type": "deepseek_v3",
  "transformers_version": "4.46.3",
  "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid",
  "topk_method": "noaux_tc",
  "rope_theta": 10000,)",
                common_config, mla_config, deepseek_moe_config}},
    {.name = "kimi-k2",
     .model_type = "kimi_k2",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=7168 inter=2048 dense_inter=18432 experts=384 top_k=8 layers=61 dense=1 heads=64 "
         "kv_heads=64 q_rank=1536 kv_rank=512 nope=128 rope=64 v_dim=128 vocab=163840 groups=1 "
         "kept_groups=1",
     .tensors = {ends, mla, deepseek_mlp},
     .config = {R"("architectures": ["DeepseekV3ForCausalLM"],
  "model_type": "kimi_k2",
  "transformers_version": "4.48.3",
  "routed_scaling_factor": 2.827,
  "scoring_func": "sigmoid",
  "topk_method": "noaux_tc",
  "rope_theta": 50000,)",
                common_config, mla_config, deepseek_moe_config}},
    {.name = "glm-4.7-flash",
     .model_type = "glm4_moe_lite",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .mtp = mtp_naming::numbered,
     .extents =
         "hidden=2048 inter=1536 dense_inter=10240 experts=64 top_k=4 layers=47 dense=1 heads=20 "
         "kv_heads=20 q_rank=768 kv_rank=512 nope=192 rope=64 v_dim=256 vocab=154880 groups=1 "
         "kept_groups=1",
     .tensors = {ends, mla, deepseek_mlp, numbered_mtp},
     .config = {R"("architectures": ["Glm4MoeLiteForCausalLM"],
  "model_type": "glm4_moe_lite",
  "transformers_version": "4.57.3",
  "mlp_layer_types": $mlp_layer_types,
  "routed_scaling_factor": 1.8,
  "topk_method": "noaux_tc",
  "rope_theta": 1000000,)",
                common_config, mla_config, deepseek_moe_config}},
    {.name = "glm-5.2",
     .model_type = "glm_moe_dsa",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .mtp = mtp_naming::numbered,
     .extents =
         "hidden=6144 inter=2048 dense_inter=12288 experts=256 top_k=8 layers=78 dense=3 heads=64 "
         "kv_heads=64 q_rank=2048 kv_rank=512 nope=192 rope=64 v_dim=256 index_heads=32 "
         "index_dim=128 "
         "vocab=154880 groups=1 kept_groups=1",
     .tensors = {ends, mla, indexer, deepseek_mlp, numbered_mtp},
     .config = {R"("architectures": ["GlmMoeDsaForCausalLM"],
  "model_type": "glm_moe_dsa",
  "transformers_version": "4.57.3",
  "mlp_layer_types": $mlp_layer_types,
  "routed_scaling_factor": 2.5,
  "index_head_dim": $index_dim,
  "index_n_heads": $index_heads,
  "index_topk": 2048,
  "rope_theta": 1000000,)",
                common_config, mla_config, deepseek_moe_config}},
    {.name = "ling-v3",
     .model_type = "bailing_moe_v3",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=8192 inter=2048 dense_inter=18432 experts=256 top_k=8 layers=80 dense=4 heads=64 "
         "kv_heads=64 q_rank=1536 kv_rank=512 nope=128 rope=64 v_dim=128 vocab=157184 groups=8 "
         "kept_groups=4",
     .tensors = {ends, mla, deepseek_mlp},
     .config = {R"("architectures": ["BailingMoeV3ForCausalLM"],
  "model_type": "bailing_moe_v3",
  "transformers_version": "4.57.1",
  "routed_scaling_factor": 2.5,
  "rope_theta": 600000,)",
                common_config, mla_config, deepseek_moe_config}},
    {.name = "mistral-large-3-hf",
     .model_type = "mistral3",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=7168 inter=4096 dense_inter=16384 experts=128 top_k=4 layers=61 dense=3 heads=128 "
         "kv_heads=128 q_rank=1536 kv_rank=512 nope=128 rope=64 v_dim=128 vocab=131072 groups=1 "
         "kept_groups=1",
     .tensors = {ends, mla, deepseek_mlp},
     .config = {R"("architectures": ["MistralLarge3ForCausalLM"],
  "model_type": "mistral3",
  "transformers_version": "5.0.0",
  "routed_scaling_factor": 1.0,
  "rope_theta": 10000,)",
                common_config, mla_config, deepseek_moe_config}},
};

}  // namespace

std::span<synth_family const> synth_mla_families() noexcept { return families; }

}  // namespace moe64::checkpoint
