#include "checkpoint/synth/families/blocks.hpp"
#include "checkpoint/synth/families/family.hpp"

/// The language part of models that also see: their tensors are named below the whole model, and
/// their config has a text_config. The vision part is left out.
namespace moe64::checkpoint {
namespace {

using namespace synth_blocks;
using enum key_schema;

constexpr std::string_view inner_ends = R"(
^embed_tokens.weight vocab hidden
^norm.weight hidden
language_model.lm_head.weight vocab hidden
~.input_layernorm.weight hidden
~.post_attention_layernorm.weight hidden
)";

constexpr std::string_view hybrid_attention = R"(
full: ~.self_attn.q_proj.weight 2*heads*head_dim hidden
full: ~.self_attn.k_proj.weight kv_heads*head_dim hidden
full: ~.self_attn.v_proj.weight kv_heads*head_dim hidden
full: ~.self_attn.o_proj.weight hidden heads*head_dim
full: ~.self_attn.q_norm.weight head_dim
full: ~.self_attn.k_norm.weight head_dim
linear: ~.linear_attn.A_log value_heads !F32
linear: ~.linear_attn.dt_bias value_heads
linear: ~.linear_attn.conv1d.weight 2*key_heads*key_dim+value_heads*value_dim 1 4
linear: ~.linear_attn.in_proj_a.weight value_heads hidden
linear: ~.linear_attn.in_proj_b.weight value_heads hidden
linear: ~.linear_attn.in_proj_qkv.weight 2*key_heads*key_dim+value_heads*value_dim hidden
linear: ~.linear_attn.in_proj_z.weight value_heads*value_dim hidden
linear: ~.linear_attn.norm.weight value_dim !F32
linear: ~.linear_attn.out_proj.weight hidden value_heads*value_dim
)";

constexpr std::string_view qwen_moe = R"(
moe: ~.mlp.gate.weight experts hidden
moe: ~.mlp.shared_expert.gate_proj.weight shared_inter hidden
moe: ~.mlp.shared_expert.up_proj.weight shared_inter hidden
moe: ~.mlp.shared_expert.down_proj.weight hidden shared_inter
moe: ~.mlp.shared_expert_gate.weight 1 hidden
mtp: mtp.fc.weight hidden 2*hidden
mtp: mtp.norm.weight hidden
mtp: mtp.pre_fc_norm_embedding.weight hidden
mtp: mtp.pre_fc_norm_hidden.weight hidden
)";

constexpr std::string_view qwen_vl_moe = R"(
moe: ~.mlp.gate.weight experts hidden
)";

constexpr std::string_view minimax_moe = R"(
moe: ~.block_sparse_moe.gate.weight experts hidden
moe: ~.block_sparse_moe.e_score_correction_bias experts !F32
moe: ~.block_sparse_moe.shared_experts.gate_proj.weight shared_inter hidden
moe: ~.block_sparse_moe.shared_experts.up_proj.weight shared_inter hidden
moe: ~.block_sparse_moe.shared_experts.down_proj.weight hidden shared_inter
)";

constexpr std::string_view llama_mlp = R"(
dense: ~.feed_forward.gate_proj.weight dense_inter hidden
dense: ~.feed_forward.up_proj.weight dense_inter hidden
dense: ~.feed_forward.down_proj.weight hidden dense_inter
moe: ~.feed_forward.router.weight experts hidden
moe: ~.feed_forward.shared_expert.gate_proj.weight inter hidden
moe: ~.feed_forward.shared_expert.up_proj.weight inter hidden
moe: ~.feed_forward.shared_expert.down_proj.weight hidden inter
)";

constexpr std::string_view hybrid_config = R"(,
    "head_dim": $head_dim,
    "layer_types": $layer_types,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": $key_dim,
    "linear_num_key_heads": $key_heads,
    "linear_num_value_heads": $value_heads,
    "linear_value_head_dim": $value_dim,
    "moe_intermediate_size": $inter,
    "shared_expert_intermediate_size": $shared_inter,
    "num_experts": $experts,
    "mtp_num_hidden_layers": $mtp,
    "rope_theta": 10000000
  })";

constexpr std::string_view hybrid_extents =
    "hidden=2048 inter=512 shared_inter=512 experts=256 top_k=8 layers=40 heads=16 kv_heads=2 "
    "head_dim=256 key_heads=16 value_heads=32 key_dim=128 value_dim=128 full_step=4 vocab=248320";

constexpr synth_family families[] = {
    {.name = "qwen3.5",
     .model_type = "qwen3_5_moe",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.language_model.",
     .layer_prefix = "model.language_model.layers.",
     .mtp = mtp_naming::apart,
     .mtp_prefix = "mtp.layers.",
     .extents = hybrid_extents,
     .tensors = {ends, hybrid_attention, qwen_moe},
     .config = {R"("architectures": ["Qwen3_5MoeForConditionalGeneration"],
  "model_type": "qwen3_5_moe",
  "transformers_version": "4.57.0",
  "text_config": {
    "model_type": "qwen3_5_moe_text",)",
                common_config, hybrid_config}},
    {.name = "qwen3.8",
     .model_type = "qwen3_8_moe",
     .schemas = schema_set(mlp_proj),
     .model_prefix = "model.language_model.",
     .layer_prefix = "model.language_model.layers.",
     .mtp = mtp_naming::apart,
     .mtp_prefix = "mtp.layers.",
     .extents = hybrid_extents,
     .tensors = {ends, hybrid_attention, qwen_moe},
     .config = {R"("architectures": ["Qwen3_8MoeForConditionalGeneration"],
  "model_type": "qwen3_8_moe",
  "transformers_version": "5.2.0",
  "text_config": {
    "model_type": "qwen3_8_moe_text",)",
                common_config, hybrid_config}},
    {.name = "qwen3-vl",
     .model_type = "qwen3_vl_moe",
     .schemas = schema_set(mlp_stack),
     .model_prefix = "model.language_model.",
     .layer_prefix = "model.language_model.layers.",
     .extents =
         "hidden=2048 inter=768 dense_inter=6144 experts=128 top_k=8 layers=48 heads=32 kv_heads=4 "
         "head_dim=128 vocab=151936",
     .tensors = {ends, gqa, head_norms, qwen_vl_moe},
     .config = {R"("architectures": ["Qwen3VLMoeForConditionalGeneration"],
  "model_type": "qwen3_vl_moe",
  "transformers_version": "4.57.0",
  "text_config": {
    "model_type": "qwen3_vl_moe_text",)",
                common_config, R"(,
    "head_dim": $head_dim,
    "intermediate_size": $dense_inter,
    "moe_intermediate_size": $inter,
    "num_experts": $experts,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": true,
    "rope_scaling": {"mrope_section": [4, 2, 2], "rope_type": "default"},
    "rope_theta": 5000000
  })"}},
    {.name = "minimax-m3",
     .model_type = "minimax_m3_vl",
     .schemas = schema_set(block_sparse_moe_w123),
     .model_prefix = "language_model.model.",
     .layer_prefix = "language_model.model.layers.",
     .extents = "hidden=6144 inter=3072 shared_inter=3072 experts=128 top_k=4 layers=60 heads=64 "
                "kv_heads=4 "
                "head_dim=128 vocab=200064",
     .tensors = {inner_ends, gqa, head_norms, minimax_moe},
     .config = {R"("architectures": ["MiniMaxM3VLForConditionalGeneration"],
  "model_type": "minimax_m3_vl",
  "transformers_version": "5.2.0",
  "text_config": {
    "model_type": "minimax_m3_vl_text",)",
                common_config, R"(,
    "head_dim": $head_dim,
    "intermediate_size": $inter,
    "shared_intermediate_size": $shared_inter,
    "num_local_experts": $experts,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "rope_theta": 5000000
  })"}},
    {.name = "llama-4",
     .model_type = "llama4",
     .schemas = schema_set(feed_forward_proj, feed_forward_stack),
     .model_prefix = "language_model.model.",
     .layer_prefix = "language_model.model.layers.",
     .extents = "hidden=5120 inter=8192 dense_inter=16384 experts=128 top_k=1 layers=48 moe_step=2 "
                "heads=40 "
                "kv_heads=8 head_dim=128 vocab=202048",
     .tensors = {inner_ends, gqa, llama_mlp},
     .config = {R"("architectures": ["Llama4ForConditionalGeneration"],
  "model_type": "llama4",
  "transformers_version": "4.51.0",
  "text_config": {
    "model_type": "llama4_text",)",
                common_config, R"(,
    "head_dim": $head_dim,
    "intermediate_size": $inter,
    "intermediate_size_mlp": $dense_inter,
    "num_local_experts": $experts,
    "interleave_moe_layer_step": 2,
    "moe_layers": $moe_layers,
    "use_qk_norm": false,
    "rope_theta": 500000
  })"}},
};

}  // namespace

std::span<synth_family const> synth_language_families() noexcept { return families; }

}  // namespace moe64::checkpoint
