#include "checkpoint/check/architecture_table.hpp"

namespace moe64::checkpoint {
namespace {

constexpr std::string_view ends = R"(
embeddings ^embed_tokens.weight
tie_word_embeddings=false: head lm_head.weight|^lm_head.weight|language_model.lm_head.weight
norm ^norm.weight
norm ~input_layernorm.weight
norm ~post_attention_layernorm.weight
)";

constexpr std::string_view gqa = R"(
attention ~self_attn.q_proj.weight
attention ~self_attn.k_proj.weight
attention ~self_attn.v_proj.weight
attention ~self_attn.o_proj.weight
)";

constexpr std::string_view gqa_norms = R"(
attention ~self_attn.q_proj.weight
attention ~self_attn.k_proj.weight
attention ~self_attn.v_proj.weight
attention ~self_attn.o_proj.weight
attention ~self_attn.q_norm.weight
attention ~self_attn.k_norm.weight
)";

/// Where the config says whether there are norms (GLM-4.5).
constexpr std::string_view stated_norms = R"(
use_qk_norm=true: attention ~self_attn.q_norm.weight
use_qk_norm=true: attention ~self_attn.k_norm.weight
)";

constexpr std::string_view indexer = R"(
indexer: attention ~self_attn.indexer.wq_b.weight
indexer: attention ~self_attn.indexer.wk.weight
indexer: attention ~self_attn.indexer.k_norm.weight
indexer: attention ~self_attn.indexer.k_norm.bias
indexer: attention ~self_attn.indexer.weights_proj.weight
)";

constexpr std::string_view mla = R"(
q_lora_rank>0: attention ~self_attn.q_a_proj.weight
q_lora_rank>0: attention ~self_attn.q_a_layernorm.weight
q_lora_rank>0: attention ~self_attn.q_b_proj.weight
attention ~self_attn.kv_a_proj_with_mqa.weight
attention ~self_attn.kv_a_layernorm.weight
attention ~self_attn.kv_b_proj.weight
attention ~self_attn.o_proj.weight
)";

constexpr std::string_view hybrid_attention = R"(
full: attention ~self_attn.q_proj.weight
full: attention ~self_attn.k_proj.weight
full: attention ~self_attn.v_proj.weight
full: attention ~self_attn.o_proj.weight
full: attention ~self_attn.q_norm.weight
full: attention ~self_attn.k_norm.weight
linear: attention ~linear_attn.A_log
linear: attention ~linear_attn.dt_bias
linear: attention ~linear_attn.conv1d.weight
linear: attention ~linear_attn.norm.weight
linear: attention ~linear_attn.in_proj_qkv.weight|~linear_attn.in_proj_qkvz.weight
linear: attention ~linear_attn.in_proj_z.weight|~linear_attn.in_proj_qkvz.weight
linear: attention ~linear_attn.in_proj_a.weight|~linear_attn.in_proj_ba.weight
linear: attention ~linear_attn.in_proj_b.weight|~linear_attn.in_proj_ba.weight
linear: attention ~linear_attn.out_proj.weight
)";

constexpr std::string_view deepseek_mlp = R"(
dense: mlp ~mlp.gate_proj.weight
dense: mlp ~mlp.up_proj.weight
dense: mlp ~mlp.down_proj.weight
moe: router ~mlp.gate.weight
n_shared_experts>0: moe: shared-expert ~mlp.shared_experts.gate_proj.weight
n_shared_experts>0: moe: shared-expert ~mlp.shared_experts.up_proj.weight
n_shared_experts>0: moe: shared-expert ~mlp.shared_experts.down_proj.weight
)";

/// The bias that balances the load decides which experts are chosen.
constexpr std::string_view score_bias = R"(
moe: router ~mlp.gate.e_score_correction_bias
)";

constexpr std::string_view qwen_mlp = R"(
dense: mlp ~mlp.gate_proj.weight
dense: mlp ~mlp.up_proj.weight
dense: mlp ~mlp.down_proj.weight
moe: router ~mlp.gate.weight
)";

constexpr std::string_view qwen_shared = R"(
moe: shared-expert ~mlp.shared_expert.gate_proj.weight
moe: shared-expert ~mlp.shared_expert.up_proj.weight
moe: shared-expert ~mlp.shared_expert.down_proj.weight
moe: shared-expert ~mlp.shared_expert_gate.weight
dense: mlp ~mlp.gate_proj.weight
dense: mlp ~mlp.up_proj.weight
dense: mlp ~mlp.down_proj.weight
moe: router ~mlp.gate.weight
)";

constexpr std::string_view ernie_mlp = R"(
dense: mlp ~mlp.gate_proj.weight
dense: mlp ~mlp.up_proj.weight
dense: mlp ~mlp.down_proj.weight
moe: router ~mlp.gate.weight
moe_num_shared_experts>0: moe: shared-expert ~mlp.shared_experts.gate_proj.weight
moe_num_shared_experts>0: moe: shared-expert ~mlp.shared_experts.up_proj.weight
moe_num_shared_experts>0: moe: shared-expert ~mlp.shared_experts.down_proj.weight
)";

constexpr std::string_view sparse_router = R"(
moe: router ~block_sparse_moe.gate.weight|~mlp.gate.weight
)";

constexpr std::string_view minimax_router = R"(
moe: router ~block_sparse_moe.gate.weight|~mlp.gate.weight
moe: router ~block_sparse_moe.e_score_correction_bias|~mlp.gate.e_score_correction_bias
)";

constexpr std::string_view minimax_shared = R"(
moe: shared-expert ~block_sparse_moe.shared_experts.gate_*|~mlp.shared_experts.gate_*
moe: shared-expert ~block_sparse_moe.shared_experts.up_*|~mlp.shared_experts.gate_*|~block_sparse_moe.shared_experts.gate_up_*
moe: shared-expert ~block_sparse_moe.shared_experts.down_proj.weight|~mlp.shared_experts.down_proj.weight
)";

constexpr std::string_view gpt_oss = R"(
attention ~self_attn.sinks
attention ~self_attn.q_proj.bias
attention ~self_attn.k_proj.bias
attention ~self_attn.v_proj.bias
attention ~self_attn.o_proj.bias
moe: router ~mlp.router.weight
moe: router ~mlp.router.bias
)";

constexpr std::string_view granite = R"(
moe: router ~block_sparse_moe.router.layer.weight|~block_sparse_moe.router.weight
)";

constexpr std::string_view llama_mlp = R"(
dense: mlp ~feed_forward.gate_proj.weight
dense: mlp ~feed_forward.up_proj.weight
dense: mlp ~feed_forward.down_proj.weight
moe: router ~feed_forward.router.weight
moe: shared-expert ~feed_forward.shared_expert.gate_proj.weight
moe: shared-expert ~feed_forward.shared_expert.up_proj.weight
moe: shared-expert ~feed_forward.shared_expert.down_proj.weight
)";

constexpr std::string_view step_mlp = R"(
dense: mlp ~mlp.gate_proj.weight
dense: mlp ~mlp.up_proj.weight
dense: mlp ~mlp.down_proj.weight
moe: router ~moe.gate.weight
moe: router ~moe.router_bias
moe: shared-expert ~share_expert.gate_proj.weight
moe: shared-expert ~share_expert.up_proj.weight
moe: shared-expert ~share_expert.down_proj.weight
)";

/// Releases differ in the names of attention and embeddings, and in what a layer's attention is.
constexpr std::string_view bailing = R"(
embeddings ^embed_tokens.weight|^word_embeddings.weight
tie_word_embeddings=false: head lm_head.weight
norm ^norm.weight
norm ~input_layernorm.weight
norm ~post_attention_layernorm.weight
attention ~self_attn.o_proj.weight|~self_attn.dense.weight|~attention.o_proj.weight|~attention.dense.weight
moe: router ~mlp.gate.weight
moe_router_enable_expert_bias=true: moe: router ~mlp.gate.expert_bias|~mlp.gate.e_score_correction_bias
dense: mlp ~mlp.gate_proj.weight
dense: mlp ~mlp.up_proj.weight
dense: mlp ~mlp.down_proj.weight
num_shared_experts>0: moe: shared-expert ~mlp.shared_experts.gate_proj.weight
num_shared_experts>0: moe: shared-expert ~mlp.shared_experts.up_proj.weight
num_shared_experts>0: moe: shared-expert ~mlp.shared_experts.down_proj.weight
n_shared_experts>0: moe: shared-expert ~mlp.shared_experts.gate_proj.weight
n_shared_experts>0: moe: shared-expert ~mlp.shared_experts.up_proj.weight
n_shared_experts>0: moe: shared-expert ~mlp.shared_experts.down_proj.weight
)";

constexpr std::string_view bailing_bias = R"(
moe: router ~mlp.gate.e_score_correction_bias|~mlp.gate.expert_bias
)";

constexpr std::string_view nemotron = R"(
embeddings ^embeddings.weight
tie_word_embeddings=false: head lm_head.weight
norm ^norm_f.weight
norm ~norm.weight
mixer ~mixer.*
moe: router ~mixer.gate.weight
moe: router ~mixer.gate.e_score_correction_bias
n_shared_experts>0: moe: shared-expert ~mixer.shared_experts.up_proj.weight
n_shared_experts>0: moe: shared-expert ~mixer.shared_experts.down_proj.weight
moe_latent_size>0: moe: latent ~mixer.fc1_latent_proj.weight
moe_latent_size>0: moe: latent ~mixer.fc2_latent_proj.weight
)";

constexpr std::string_view lfm2 = R"(
embeddings ^embed_tokens.weight
norm ^embedding_norm.weight
norm ~operator_norm.weight
norm ~ffn_norm.weight
full: attention ~self_attn.q_proj.weight
full: attention ~self_attn.k_proj.weight
full: attention ~self_attn.v_proj.weight
full: attention ~self_attn.out_proj.weight
conv: convolution ~conv.in_proj.weight
conv: convolution ~conv.conv.weight
conv: convolution ~conv.out_proj.weight
dense: mlp ~feed_forward.w1.weight
dense: mlp ~feed_forward.w2.weight
dense: mlp ~feed_forward.w3.weight
moe: router ~feed_forward.gate.weight
use_expert_bias=true: moe: router ~feed_forward.expert_bias
)";

constexpr std::string_view jamba = R"(
embeddings ^embed_tokens.weight
norm ^final_layernorm.weight
norm ~input_layernorm.weight
norm ~pre_ff_layernorm.weight
mixer ~self_attn.o_proj.weight|~mamba.out_proj.weight
dense: mlp ~feed_forward.gate_proj.weight
dense: mlp ~feed_forward.up_proj.weight
dense: mlp ~feed_forward.down_proj.weight
moe: router ~feed_forward.router.weight
)";

constexpr std::string_view deepseek_v4 = R"(
embeddings ^embed.weight|^embed_tokens.weight
tie_word_embeddings=false: head head.weight|lm_head.weight
norm ^norm.weight
norm ~attn_norm.weight|~input_layernorm.weight
norm ~ffn_norm.weight|~post_attention_layernorm.weight
attention ~attn.wq_a.weight|~self_attn.q_a_proj.weight
attention ~attn.wq_b.weight|~self_attn.q_b_proj.weight
attention ~attn.wkv.weight|~self_attn.kv_proj.weight
attention ~attn.wo_a.weight|~self_attn.o_a_proj.weight
attention ~attn.wo_b.weight|~self_attn.o_b_proj.weight
attention ~attn.attn_sink|~self_attn.sinks
attention ~attn.q_norm.weight|~self_attn.q_a_norm.weight
attention ~attn.norm.weight|~attn.kv_norm.weight|~self_attn.kv_norm.weight
hc_mult>0: hyper-connection hc_head_fn|^hc_head.hc_fn
hc_mult>0: hyper-connection hc_head_base|^hc_head.hc_base
hc_mult>0: hyper-connection hc_head_scale|^hc_head.hc_scale
hc_mult>0: hyper-connection ~hc_attn_fn|~attn_hc.fn
hc_mult>0: hyper-connection ~hc_attn_base|~attn_hc.base
hc_mult>0: hyper-connection ~hc_attn_scale|~attn_hc.scale
hc_mult>0: hyper-connection ~hc_ffn_fn|~ffn_hc.fn
hc_mult>0: hyper-connection ~hc_ffn_base|~ffn_hc.base
hc_mult>0: hyper-connection ~hc_ffn_scale|~ffn_hc.scale
moe: router ~ffn.gate.weight|~mlp.gate.weight
moe: router ~ffn.gate.bias|~ffn.gate.tid2eid|~mlp.gate.e_score_correction_bias|~mlp.gate.tid2eid
n_shared_experts>0: moe: shared-expert ~ffn.shared_experts.w1.weight|~mlp.shared_experts.gate_proj.weight
n_shared_experts>0: moe: shared-expert ~ffn.shared_experts.w2.weight|~mlp.shared_experts.down_proj.weight
n_shared_experts>0: moe: shared-expert ~ffn.shared_experts.w3.weight|~mlp.shared_experts.up_proj.weight
)";

constexpr std::string_view mistral_native = R"(
embeddings ^tok_embeddings.weight
head ^output.weight
norm ^norm.weight
norm ~attention_norm.weight
norm ~ffn_norm.weight
q_lora_rank>0: attention ~attention.wq_a.weight
q_lora_rank>0: attention ~attention.q_a_norm.weight
q_lora_rank>0: attention ~attention.wq_b.weight
attention ~attention.wkv_a_with_mqa.weight
attention ~attention.kv_a_norm.weight
attention ~attention.wkv_b.weight
attention ~attention.wo.weight
dense: mlp ~feed_forward.w1.weight
dense: mlp ~feed_forward.w2.weight
dense: mlp ~feed_forward.w3.weight
moe: router ~gate.weight
num_shared_experts>0: moe: shared-expert ~shared_experts.w1.weight
num_shared_experts>0: moe: shared-expert ~shared_experts.w2.weight
num_shared_experts>0: moe: shared-expert ~shared_experts.w3.weight
)";

constexpr architecture table[] = {
    {"deepseek_v3 kimi_k2",
     "Transformers models/deepseek_v3",
     {ends, mla, deepseek_mlp, score_bias}},
    {"deepseek_v32 glm_moe_dsa",
     "Transformers models/deepseek_v32, models/glm_moe_dsa",
     {ends, mla, indexer, deepseek_mlp, score_bias}},
    {"deepseek_v2", "Transformers models/deepseek_v2", {ends, mla, deepseek_mlp}},
    {"glm4_moe_lite", "Transformers models/glm4_moe_lite", {ends, mla, deepseek_mlp, score_bias}},
    {"glm4_moe",
     "Transformers models/glm4_moe",
     {ends, gqa, stated_norms, deepseek_mlp, score_bias}},
    {"dots1", "Transformers models/dots1", {ends, gqa_norms, deepseek_mlp, score_bias}},
    {"bailing_moe_v3 bailing_hybrid",
     "Transformers conversion_mapping.py, bailing_hybrid",
     {bailing, bailing_bias}},
    {"bailing_moe bailing_moe_v2", "Transformers conversion_mapping.py, bailing_hybrid", {bailing}},
    {"qwen3_moe qwen3_vl_moe",
     "Transformers models/qwen3_moe, models/qwen3_vl_moe",
     {ends, gqa_norms, qwen_mlp}},
    {"qwen2_moe", "Transformers models/qwen2_moe", {ends, gqa, qwen_shared}},
    {"qwen3_5_moe qwen3_8_moe qwen3_next",
     "Transformers models/qwen3_5_moe, models/qwen3_next",
     {ends, hybrid_attention, qwen_shared}},
    {"olmoe", "Transformers models/olmoe", {ends, gqa_norms, qwen_mlp}},
    {"ernie4_5_moe", "Transformers models/ernie4_5_moe", {ends, gqa, ernie_mlp}},
    {"mixtral phimoe",
     "Transformers models/mixtral, conversion_mapping.py",
     {ends, gqa, sparse_router}},
    {"minimax_m2",
     "Transformers models/minimax_m2, conversion_mapping.py",
     {ends, gqa_norms, minimax_router}},
    {"minimax_m3_vl minimax_m3",
     "Transformers models/minimax_m3_vl, conversion_mapping.py",
     {ends, gqa_norms, minimax_router, minimax_shared}},
    {"gpt_oss", "Transformers models/gpt_oss", {ends, gqa, gpt_oss}},
    {"granitemoe", "Transformers models/granitemoe, conversion_mapping.py", {ends, gqa, granite}},
    {"llama4", "Transformers models/llama4", {ends, gqa, llama_mlp}},
    {"step3p5 step3p7", "Transformers conversion_mapping.py, step3p7", {ends, gqa_norms, step_mlp}},
    {"mistral3 mistral4", "Transformers models/mistral4", {ends, mla, deepseek_mlp}},
    {"nemotron_h", "Transformers models/nemotron_h, conversion_mapping.py", {nemotron}},
    {"lfm2_moe", "Transformers models/lfm2_moe", {lfm2}},
    {"jamba", "Transformers models/jamba", {jamba}},
    {"deepseek_v4", "Transformers models/deepseek_v4, conversion_mapping.py", {deepseek_v4}},
    {"params.json", "consolidated files of Mistral Large 3", {mistral_native}},
};

}  // namespace

std::span<architecture const> architecture_table() noexcept { return table; }

}  // namespace moe64::checkpoint
