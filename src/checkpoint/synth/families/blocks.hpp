#pragma once

#include <string_view>

/// Pieces that several architectures of synth_family share.
namespace moe64::checkpoint::synth_blocks {

inline constexpr std::string_view ends = R"(
^embed_tokens.weight vocab hidden
^norm.weight hidden
lm_head.weight vocab hidden
~.input_layernorm.weight hidden
~.post_attention_layernorm.weight hidden
)";

inline constexpr std::string_view gqa = R"(
~.self_attn.q_proj.weight heads*head_dim hidden
~.self_attn.k_proj.weight kv_heads*head_dim hidden
~.self_attn.v_proj.weight kv_heads*head_dim hidden
~.self_attn.o_proj.weight hidden heads*head_dim
)";

inline constexpr std::string_view qkv_bias = R"(
~.self_attn.q_proj.bias heads*head_dim
~.self_attn.k_proj.bias kv_heads*head_dim
~.self_attn.v_proj.bias kv_heads*head_dim
)";

inline constexpr std::string_view head_norms = R"(
~.self_attn.q_norm.weight head_dim
~.self_attn.k_norm.weight head_dim
)";

inline constexpr std::string_view wide_norms = R"(
~.self_attn.q_norm.weight heads*head_dim
~.self_attn.k_norm.weight kv_heads*head_dim
)";

inline constexpr std::string_view mla = R"(
~.self_attn.q_a_proj.weight q_rank hidden
~.self_attn.q_a_layernorm.weight q_rank
~.self_attn.q_b_proj.weight heads*nope+heads*rope q_rank
~.self_attn.kv_a_proj_with_mqa.weight kv_rank+rope hidden
~.self_attn.kv_a_layernorm.weight kv_rank
~.self_attn.kv_b_proj.weight heads*nope+heads*v_dim kv_rank
~.self_attn.o_proj.weight hidden heads*v_dim
)";

inline constexpr std::string_view deepseek_mlp = R"(
dense: ~.mlp.gate_proj.weight dense_inter hidden
dense: ~.mlp.up_proj.weight dense_inter hidden
dense: ~.mlp.down_proj.weight hidden dense_inter
moe: ~.mlp.gate.weight experts hidden
moe: ~.mlp.gate.e_score_correction_bias experts !F32
moe: ~.mlp.shared_experts.gate_proj.weight inter hidden
moe: ~.mlp.shared_experts.up_proj.weight inter hidden
moe: ~.mlp.shared_experts.down_proj.weight hidden inter
)";

inline constexpr std::string_view numbered_mtp = R"(
mtp: ~.eh_proj.weight hidden 2*hidden
mtp: ~.enorm.weight hidden
mtp: ~.hnorm.weight hidden
mtp: ~.embed_tokens.weight vocab hidden
mtp: ~.shared_head.norm.weight hidden
mtp: ~.shared_head.head.weight vocab hidden
)";

inline constexpr std::string_view common_config = R"(
  "hidden_size": $hidden,
  "num_hidden_layers": $layers,
  "num_attention_heads": $heads,
  "num_key_value_heads": $kv_heads,
  "vocab_size": $vocab,
  "num_experts_per_tok": $top_k,
  "max_position_embeddings": 4096,
  "hidden_act": "silu",
  "initializer_range": 0.02,
  "rms_norm_eps": 1e-06,
  "bos_token_id": 0,
  "eos_token_id": 1,
  "tie_word_embeddings": false,
  "attention_bias": false,
  "use_cache": true,
  "torch_dtype": "bfloat16")";

inline constexpr std::string_view mla_config = R"(,
  "q_lora_rank": $q_rank,
  "kv_lora_rank": $kv_rank,
  "qk_nope_head_dim": $nope,
  "qk_rope_head_dim": $rope,
  "v_head_dim": $v_dim)";

inline constexpr std::string_view deepseek_moe_config = R"(,
  "intermediate_size": $dense_inter,
  "moe_intermediate_size": $inter,
  "n_routed_experts": $experts,
  "n_shared_experts": 1,
  "n_group": $groups,
  "topk_group": $kept_groups,
  "norm_topk_prob": true,
  "first_k_dense_replace": $dense,
  "num_nextn_predict_layers": $mtp)";

}  // namespace moe64::checkpoint::synth_blocks
