#include "checkpoint/synth/families/family.hpp"

/// Models whose files keep the names of their makers' own code.
namespace moe64::checkpoint {
namespace {

using enum key_schema;

constexpr std::string_view deepseek_v4 = R"(
embed.weight vocab hidden
norm.weight hidden
head.weight vocab hidden
hc_head_base 4 !F32
hc_head_fn 4 4*hidden !F32
hc_head_scale 1 !F32
~.attn_norm.weight hidden
~.ffn_norm.weight hidden
~.attn.attn_sink heads !F32
~.attn.norm.weight head_dim
~.attn.q_norm.weight q_rank
~.attn.wq_a.weight q_rank hidden
~.attn.wq_b.weight heads*head_dim q_rank
~.attn.wkv.weight head_dim hidden
~.attn.wo_a.weight o_groups*o_rank per_o_group
~.attn.wo_b.weight hidden o_groups*o_rank
~.hc_attn_base 24 !F32
~.hc_attn_fn 24 4*hidden !F32
~.hc_attn_scale 3 !F32
~.hc_ffn_base 24 !F32
~.hc_ffn_fn 24 4*hidden !F32
~.hc_ffn_scale 3 !F32
moe: ~.ffn.gate.weight experts hidden
moe: ~.ffn.gate.bias experts !F32
moe: ~.ffn.shared_experts.w1.weight inter hidden
moe: ~.ffn.shared_experts.w2.weight hidden inter
moe: ~.ffn.shared_experts.w3.weight inter hidden
mtp: ~.e_proj.weight hidden hidden
mtp: ~.h_proj.weight hidden hidden
mtp: ~.enorm.weight hidden
mtp: ~.hnorm.weight hidden
mtp: ~.norm.weight hidden
)";

constexpr std::string_view deepseek_v4_config = R"("architectures": ["DeepseekV4ForCausalLM"],
  "model_type": "deepseek_v4",
  "transformers_version": "5.8.0",
  "hidden_size": $hidden,
  "num_hidden_layers": $layers,
  "num_attention_heads": $heads,
  "num_key_value_heads": 1,
  "head_dim": $head_dim,
  "q_lora_rank": $q_rank,
  "o_lora_rank": $o_rank,
  "o_groups": $o_groups,
  "qk_rope_head_dim": $rope,
  "index_head_dim": $index_dim,
  "index_n_heads": $index_heads,
  "hc_mult": 4,
  "layer_types": $sliding_layers,
  "mlp_layer_types": $moe_types,
  "vocab_size": $vocab,
  "moe_intermediate_size": $inter,
  "n_routed_experts": $experts,
  "n_shared_experts": 1,
  "num_experts_per_tok": $top_k,
  "num_nextn_predict_layers": $mtp,
  "routed_scaling_factor": 1.5,
  "scoring_func": "sqrtsoftplus",
  "swiglu_limit": 10.0,
  "hidden_act": "silu",
  "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-06,
  "rope_theta": 10000,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16")";

constexpr std::string_view mistral = R"(
tok_embeddings.weight vocab hidden
norm.weight hidden
output.weight vocab hidden
~.attention_norm.weight hidden
~.ffn_norm.weight hidden
~.attention.wq_a.weight q_rank hidden
~.attention.q_a_norm.weight q_rank
~.attention.wq_b.weight heads*nope+heads*rope q_rank
~.attention.wkv_a_with_mqa.weight kv_rank+rope hidden
~.attention.kv_a_norm.weight kv_rank
~.attention.wkv_b.weight heads*nope+heads*v_dim kv_rank
~.attention.wo.weight hidden heads*v_dim
dense: ~.feed_forward.w1.weight dense_inter hidden
dense: ~.feed_forward.w2.weight hidden dense_inter
dense: ~.feed_forward.w3.weight dense_inter hidden
moe: ~.gate.weight experts hidden
moe: ~.shared_experts.w1.weight inter hidden
moe: ~.shared_experts.w2.weight hidden inter
moe: ~.shared_experts.w3.weight inter hidden
)";

constexpr synth_family families[] = {
    {.name = "deepseek-v4",
     .model_type = "deepseek_v4",
     .schemas = schema_set(ffn_w123),
     .layer_prefix = "layers.",
     .mtp = mtp_naming::apart,
     .mtp_prefix = "mtp.",
     .extents =
         "hidden=4096 inter=2048 experts=256 top_k=6 layers=43 heads=64 head_dim=512 q_rank=1024 "
         "o_rank=1024 o_groups=8 rope=64 index_heads=64 index_dim=128 vocab=129280",
     .tensors = {deepseek_v4},
     .config = {deepseek_v4_config}},
    {.name = "mistral-large-3",
     .schemas = schema_set(experts_w123),
     .layer_prefix = "layers.",
     .extents =
         "hidden=7168 inter=4096 dense_inter=16384 experts=128 top_k=4 layers=61 dense=3 heads=128 "
         "kv_heads=128 q_rank=1536 kv_rank=512 nope=128 rope=64 v_dim=128 vocab=131072",
     .tensors = {mistral},
     .params = R"("dim": $hidden,
  "n_layers": $layers,
  "n_heads": $heads,
  "n_kv_heads": $kv_heads,
  "hidden_dim": $dense_inter,
  "vocab_size": $vocab,
  "norm_eps": 1e-06,
  "rope_theta": 10000.0,
  "q_lora_rank": $q_rank,
  "kv_lora_rank": $kv_rank,
  "qk_nope_head_dim": $nope,
  "qk_rope_head_dim": $rope,
  "v_head_dim": $v_dim,
  "moe": {
    "first_k_dense_replace": $dense,
    "num_experts": $experts,
    "num_experts_per_tok": $top_k,
    "num_shared_experts": 1,
    "expert_hidden_dim": $inter,
    "routed_scale": 1.0
  })"},
};

}  // namespace

std::span<synth_family const> synth_native_families() noexcept { return families; }

}  // namespace moe64::checkpoint
