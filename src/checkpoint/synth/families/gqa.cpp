#include "checkpoint/synth/families/blocks.hpp"
#include "checkpoint/synth/families/family.hpp"

namespace moe64::checkpoint {
namespace {

using namespace synth_blocks;
using enum key_schema;

constexpr std::string_view router = R"(
moe: ~.mlp.gate.weight experts hidden
)";
constexpr std::string_view sparse_router = R"(
moe: ~.block_sparse_moe.gate.weight experts hidden
)";
constexpr std::string_view minimax_router = R"(
moe: ~.block_sparse_moe.gate.weight experts hidden
moe: ~.block_sparse_moe.e_score_correction_bias experts !F32
)";
constexpr std::string_view gpt_oss_rest = R"(
~.self_attn.o_proj.bias hidden
~.self_attn.sinks heads
moe: ~.mlp.router.weight experts hidden
moe: ~.mlp.router.bias experts
)";
constexpr std::string_view granite_router = R"(
moe: ~.block_sparse_moe.router.layer.weight experts hidden
)";
constexpr std::string_view step_mlp = R"(
dense: ~.mlp.gate_proj.weight dense_inter hidden
dense: ~.mlp.up_proj.weight dense_inter hidden
dense: ~.mlp.down_proj.weight hidden dense_inter
moe: ~.moe.gate.weight experts hidden
moe: ~.moe.router_bias experts !F32
moe: ~.share_expert.gate_proj.weight inter hidden
moe: ~.share_expert.up_proj.weight inter hidden
moe: ~.share_expert.down_proj.weight hidden inter
)";

constexpr std::string_view head_config = R"(,
  "head_dim": $head_dim)";

constexpr std::string_view qwen_config = R"("architectures": ["Qwen3MoeForCausalLM"],
  "model_type": "qwen3_moe",
  "transformers_version": "4.51.0",
  "head_dim": $head_dim,
  "intermediate_size": $dense_inter,
  "moe_intermediate_size": $inter,
  "num_experts": $experts,
  "decoder_sparse_step": 1,
  "mlp_only_layers": [],
  "norm_topk_prob": true,
  "rope_theta": 1000000,)";

constexpr synth_family families[] = {
    {.name = "glm-4.5",
     .model_type = "glm4_moe",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .mtp = mtp_naming::numbered,
     .extents =
         "hidden=5120 inter=1536 dense_inter=12288 experts=160 top_k=8 layers=92 dense=3 heads=96 "
         "kv_heads=8 head_dim=128 vocab=151552 groups=1 kept_groups=1",
     .tensors = {ends, gqa, head_norms, deepseek_mlp, numbered_mtp},
     .config = {R"("architectures": ["Glm4MoeForCausalLM"],
  "model_type": "glm4_moe",
  "transformers_version": "4.54.0",
  "head_dim": $head_dim,
  "use_qk_norm": true,
  "partial_rotary_factor": 0.5,
  "routed_scaling_factor": 2.5,
  "rope_theta": 1000000,)",
                common_config, deepseek_moe_config}},
    {.name = "dots1",
     .model_type = "dots1",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=4096 inter=1408 dense_inter=10944 experts=128 top_k=6 layers=62 dense=1 heads=32 "
         "kv_heads=32 head_dim=128 vocab=152064 groups=1 kept_groups=1",
     .tensors = {ends, gqa, head_norms, deepseek_mlp},
     .config = {R"("architectures": ["Dots1ForCausalLM"],
  "model_type": "dots1",
  "transformers_version": "4.53.0",
  "head_dim": $head_dim,
  "routed_scaling_factor": 2.5,
  "rope_theta": 10000000,)",
                common_config, deepseek_moe_config}},
    {.name = "qwen3-30b",
     .model_type = "qwen3_moe",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=2048 inter=768 dense_inter=6144 experts=128 top_k=8 layers=48 heads=32 kv_heads=4 "
         "head_dim=128 vocab=151936",
     .tensors = {ends, gqa, head_norms, router},
     .config = {qwen_config, common_config}},
    {.name = "olmoe",
     .model_type = "olmoe",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=2048 inter=1024 experts=64 top_k=8 layers=16 heads=16 kv_heads=16 whole_heads=1 "
         "vocab=50304",
     .tensors = {ends, gqa, wide_norms, router},
     .config = {R"("architectures": ["OlmoeForCausalLM"],
  "model_type": "olmoe",
  "transformers_version": "5.6.0",
  "head_dim": $head_dim,
  "intermediate_size": $inter,
  "num_experts": $experts,
  "norm_topk_prob": false,
  "rope_theta": 10000,)",
                common_config}},
    {.name = "mixtral",
     .model_type = "mixtral",
     .schemas = schema_set(block_sparse_moe_w123),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=4096 inter=14336 experts=8 top_k=2 layers=32 heads=32 kv_heads=8 head_dim=128 "
         "vocab=32000",
     .tensors = {ends, gqa, sparse_router},
     .config = {R"("architectures": ["MixtralForCausalLM"],
  "model_type": "mixtral",
  "transformers_version": "4.40.1",
  "intermediate_size": $inter,
  "num_local_experts": $experts,
  "rope_theta": 1000000,)",
                common_config, head_config}},
    {.name = "minimax-m2",
     .model_type = "minimax_m2",
     .schemas = schema_set(block_sparse_moe_w123),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=3072 inter=1536 experts=256 top_k=8 layers=62 heads=48 kv_heads=8 head_dim=128 "
         "vocab=200064",
     .tensors = {ends, gqa, wide_norms, minimax_router},
     .config = {R"("architectures": ["MiniMaxM2ForCausalLM"],
  "model_type": "minimax_m2",
  "transformers_version": "4.57.1",
  "intermediate_size": $inter,
  "num_local_experts": $experts,
  "rotary_dim": $rotary,
  "use_qk_norm": true,
  "scoring_func": "sigmoid",
  "rope_theta": 5000000,)",
                common_config, head_config}},
    {.name = "gpt-oss",
     .model_type = "gpt_oss",
     .schemas = schema_set(mlp_stack_blocks, mlp_stack),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=2880 inter=2880 experts=32 top_k=4 layers=24 heads=64 kv_heads=8 head_dim=64 "
         "vocab=201088",
     .tensors = {ends, gqa, qkv_bias, gpt_oss_rest},
     .config = {R"("architectures": ["GptOssForCausalLM"],
  "model_type": "gpt_oss",
  "transformers_version": "4.55.0",
  "head_dim": $head_dim,
  "intermediate_size": $inter,
  "num_local_experts": $experts,
  "swiglu_limit": 7.0,
  "sliding_window": 128,
  "rope_theta": 150000,)",
                R"(
  "hidden_size": $hidden,
  "num_hidden_layers": $layers,
  "num_attention_heads": $heads,
  "num_key_value_heads": $kv_heads,
  "vocab_size": $vocab,
  "num_experts_per_tok": $top_k,
  "max_position_embeddings": 131072,
  "hidden_act": "silu",
  "initializer_range": 0.02,
  "rms_norm_eps": 1e-05,
  "attention_bias": true,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16")"}},
    {.name = "granite-moe",
     .model_type = "granitemoe",
     .schemas = schema_set(block_sparse_moe_stack),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=1536 inter=512 experts=40 top_k=8 layers=32 heads=24 kv_heads=8 head_dim=64 "
         "vocab=49155",
     .tensors = {ends, gqa, granite_router},
     .config = {R"("architectures": ["GraniteMoeForCausalLM"],
  "model_type": "granitemoe",
  "transformers_version": "4.46.0",
  "head_dim": $head_dim,
  "intermediate_size": $inter,
  "num_local_experts": $experts,
  "attention_multiplier": 0.015625,
  "embedding_multiplier": 12.0,
  "logits_scaling": 6.0,
  "residual_multiplier": 0.22,
  "rope_theta": 10000,)",
                common_config}},
    {.name = "step-3.5",
     .model_type = "step3p5",
     .schemas = schema_set(moe_stack),
     .model_prefix = "model.",
     .layer_prefix = "model.layers.",
     .extents =
         "hidden=4096 inter=1280 dense_inter=11264 experts=288 top_k=8 layers=45 dense=3 heads=64 "
         "kv_heads=8 head_dim=128 vocab=128896",
     .tensors = {ends, gqa, head_norms, step_mlp},
     .config = {R"("architectures": ["Step3p5ForCausalLM"],
  "model_type": "step3p5",
  "transformers_version": "4.57.1",
  "head_dim": $head_dim,
  "intermediate_size": $dense_inter,
  "moe_intermediate_size": $inter,
  "moe_num_experts": $experts,
  "moe_top_k": $top_k,
  "moe_layers_enum": "$moe_enum",
  "share_expert_dim": $inter,
  "rope_theta": 10000,)",
                common_config}},
};

}  // namespace

std::span<synth_family const> synth_gqa_families() noexcept { return families; }

}  // namespace moe64::checkpoint
