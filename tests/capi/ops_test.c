// Every operation once through the C ABI, on data for which the right answer is exact.
#include "check.h"

#define CHECK_ARRAY(got, ...)                                          \
  do {                                                                 \
    const float want_[] = {__VA_ARGS__};                               \
    CHECK(sizeof want_ == sizeof(got));                                \
    check_array(__FILE__, __LINE__, #got, (const float*)&(got), want_, \
                sizeof want_ / sizeof(float));                         \
  } while (0)

static void check_array(const char* file, int line, const char* name, const float* got,
                        const float* want, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (got[i] == want[i]) continue;
    fprintf(stderr, "%s[%zu] is %.9g, not %.9g\n", name, i, (double)got[i], (double)want[i]);
    check_report(file, line, name);
    return;
  }
}

/// The name of an implementation arrives: one that does not exist is refused.
#define CHECK_FORCED(operation, args)                           \
  do {                                                          \
    (args).implementation = "no_such_thing";                    \
    CHECK(operation(&(args), here()) == MOE64_UNSUPPORTED);     \
    CHECK(strstr(moe64_last_error(), "no_such_thing") != NULL); \
  } while (0)

static moe64_stream here(void) { return moe64_cpu_stream(NULL); }

static moe64_weights* f32_stack(const void* values, int64_t experts, int64_t rows, int64_t cols) {
  const moe64_quantized q = plain(tensor3(values, MOE64_DTYPE_F32, experts, rows, cols));
  moe64_weights* weights = NULL;
  REQUIRE(moe64_weights_single(&q, &weights) == MOE64_OK);
  return weights;
}

// ---- quantize, dequantize -----------------------------------------------------------------------

static void test_quantize(void) {
  const float x[2][4] = {{448.0F, -224.0F, 0.0F, 112.0F}, {0.0F, 896.0F, 448.0F, -2.0F}};
  uint8_t codes[2][4];
  float scales[2][1];
  memset(codes, 0x5a, sizeof codes);
  memset(scales, 0xff, sizeof scales);
  moe64_quantize_args args = moe64_quantize_args_init();
  args.x = tensor2(x, MOE64_DTYPE_F32, 2, 4);
  args.layout.kind = MOE64_SCALE_ROW;
  args.values = tensor2(codes, MOE64_DTYPE_E4M3, 2, 4);
  args.scales = tensor2(scales, MOE64_DTYPE_F32, 2, 1);
  REQUIRE(moe64_quantize(&args, here()) == MOE64_OK);
  const uint8_t want[2][4] = {{0x7e, 0xf6, 0x00, 0x6e}, {0x00, 0x7e, 0x76, 0xb8}};
  CHECK(memcmp(codes, want, sizeof want) == 0);
  CHECK_ARRAY(scales, 1.0F, 2.0F);

  // live_rows: the second row is not looked at.
  const int64_t live[1] = {1};
  memset(codes, 0x5a, sizeof codes);
  args.live_rows = tensor1(live, MOE64_DTYPE_INT64, 1);
  REQUIRE(moe64_quantize(&args, here()) == MOE64_OK);
  CHECK(memcmp(codes[0], want[0], 4) == 0 && codes[1][0] == 0x5a && codes[1][3] == 0x5a);
  CHECK_FORCED(moe64_quantize, args);
}

static void test_dequantize(void) {
  // [2, 1, 20] fp4 in groups of 16 with e4m3 scales and a global scale that divides: NVFP4 as
  // compressed-tensors stores it. Codes 2 (= 1.0) and 0xf (= -6.0) by turns; group scales 1 and 2,
  // then 4 and 0.
  uint8_t codes[2][10];
  memset(codes, 0xf2, sizeof codes);
  const uint8_t scales[2][2] = {{0x38, 0x40}, {0x48, 0x00}};
  const float global[2] = {2.0F, 8.0F};
  float out[2][20];
  memset(out, 0xff, sizeof out);
  moe64_dequantize_args args = moe64_dequantize_args_init();
  args.q = scaled(tensor3(codes, MOE64_DTYPE_FP4, 2, 1, 20),
                  tensor3(scales, MOE64_DTYPE_E4M3, 2, 1, 2), MOE64_SCALE_GROUP, 0, 16);
  args.q.global.values = tensor1(global, MOE64_DTYPE_F32, 2);
  args.q.global.applied = MOE64_DIVIDE;
  args.out = tensor3(out, MOE64_DTYPE_F32, 2, 1, 20);
  REQUIRE(moe64_dequantize(&args, here()) == MOE64_OK);
  for (int e = 0; e < 2; ++e) {
    for (int c = 0; c < 20; ++c) {
      const float scale = e == 0 ? (c < 16 ? 0.5F : 1.0F) : (c < 16 ? 0.5F : 0.0F);
      CHECK(out[e][c] == (c % 2 == 0 ? 1.0F : -6.0F) * scale);
    }
  }
  args.q.global.applied = MOE64_MULTIPLY;
  REQUIRE(moe64_dequantize(&args, here()) == MOE64_OK);
  CHECK(out[0][0] == 2.0F && out[0][17] == -24.0F && out[1][1] == -192.0F);
  CHECK_FORCED(moe64_dequantize, args);
}

// ---- route --------------------------------------------------------------------------------------

static void test_route(void) {
  const float logits[1][4] = {{0.0F, 0.0F, -100.0F, 0.0F}}, bias[4] = {0.0F, 1.0F, 0.0F, 2.0F};
  int64_t ids[2];
  float weights[2];
  memset(weights, 0xff, sizeof weights);
  moe64_route_args args = moe64_route_args_init();
  args.logits = tensor2(logits, MOE64_DTYPE_F32, 1, 4);
  args.selection_bias = tensor1(bias, MOE64_DTYPE_F32, 4);
  args.options.score = MOE64_SIGMOID;
  args.options.renormalize = 1;
  args.options.scaling = 4.0F;
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT64, 1, 2);
  args.weights = tensor2(weights, MOE64_DTYPE_F32, 1, 2);
  REQUIRE(moe64_route(&args, here()) == MOE64_OK);
  CHECK(ids[0] == 3 && ids[1] == 1);
  CHECK_ARRAY(weights, 2.0F, 2.0F);

  // Two groups of two, of which the one that holds the best expert is kept.
  const float lean[4] = {0.0F, 1.0F, 0.0F, 0.5F};
  args.selection_bias = tensor1(lean, MOE64_DTYPE_F32, 4);
  args.options.expert_groups = 2;
  args.options.group_by = MOE64_GROUP_MAX;
  args.options.renormalize = 0;
  REQUIRE(moe64_route(&args, here()) == MOE64_OK);
  CHECK(ids[0] == 1 && ids[1] == 0);
  CHECK_ARRAY(weights, 2.0F, 2.0F);

  // One slot: renormalised its weight is 1, whatever its score.
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT64, 1, 1);
  args.weights = tensor2(weights, MOE64_DTYPE_F32, 1, 1);
  args.options.renormalize = 1;
  REQUIRE(moe64_route(&args, here()) == MOE64_OK);
  CHECK(ids[0] == 1 && weights[0] == 4.0F);
  CHECK_FORCED(moe64_route, args);
}

static void test_route_backward(void) {
  const float logits[1][4] = {{0.0F, 0.0F, 3.0F, 0.0F}}, d_weights[2] = {1.0F, -2.0F};
  const int32_t ids[2] = {3, 1};
  float d_logits[4];
  memset(d_logits, 0xff, sizeof d_logits);
  moe64_route_backward_args args = moe64_route_backward_args_init();
  args.logits = tensor2(logits, MOE64_DTYPE_F32, 1, 4);
  args.options.score = MOE64_SIGMOID;
  args.options.scaling = 8.0F;
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT32, 1, 2);
  args.d_weights = tensor2(d_weights, MOE64_DTYPE_F32, 1, 2);
  args.d_logits = tensor2(d_logits, MOE64_DTYPE_F32, 1, 4);
  REQUIRE(moe64_route_backward(&args, here()) == MOE64_OK);
  CHECK_ARRAY(d_logits, 0.0F, -4.0F, 0.0F, 2.0F);  // 8 * sigmoid'(0) = 2
  CHECK_FORCED(moe64_route_backward, args);
}

// ---- plan, and all that needs one ---------------------------------------------------------------

enum { tokens = 3, top_k = 2, slots = 6, experts = 2 };

/// Rows in expert order: expert 0: slots 1, 4; expert 1: slots 0, 5. Slots 2 and 3 are sentinels.
static moe64_workspace make_plan(moe64_routing_plan* plan) {
  static const int32_t ids[tokens][top_k] = {{1, 0}, {-1, 2}, {0, 1}};
  static const float weights[tokens][top_k] = {{0.5F, 2.0F}, {9.0F, 9.0F}, {4.0F, 1.0F}};
  int64_t plan_bytes = -1, scratch_bytes = -1;
  REQUIRE(moe64_plan_bytes(tokens, top_k, experts, &plan_bytes) == MOE64_OK);
  REQUIRE(moe64_plan_scratch_bytes(tokens, top_k, experts, on_cpu(), &scratch_bytes) == MOE64_OK);
  const moe64_workspace memory = lend(plan_bytes), scratch = lend(scratch_bytes);
  REQUIRE(moe64_bind_plan(&memory, tokens, top_k, experts, plan) == MOE64_OK);
  moe64_plan_args args = moe64_plan_args_init();
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT32, tokens, top_k);
  args.weights = tensor2(weights, MOE64_DTYPE_F32, tokens, top_k);
  args.experts_total = experts;
  args.plan = *plan;
  args.scratch = scratch;
  REQUIRE(moe64_plan(&args, here()) == MOE64_OK);
  free(scratch.data);
  return memory;
}

static void test_plan(void) {
  moe64_routing_plan plan;
  const moe64_workspace memory = make_plan(&plan);
  CHECK(plan.tokens == tokens && plan.top_k == top_k && plan.experts == experts);
  const int64_t begin[] = {0, 2, 4}, row_to_slot[] = {1, 4, 0, 5},
                slot_to_row[] = {2, 0, -1, -1, 1, 3};
  const int64_t status[MOE64_PLAN_STATUS_COUNT] = {4, 2, 0, 0, 0, -1};
  CHECK(memcmp(plan.expert_begin.data, begin, sizeof begin) == 0);
  CHECK(memcmp(plan.row_to_slot.data, row_to_slot, sizeof row_to_slot) == 0);
  CHECK(memcmp(plan.slot_to_row.data, slot_to_row, sizeof slot_to_row) == 0);
  CHECK(memcmp(plan.status.data, status, sizeof status) == 0);
  float weights[slots];
  memcpy(weights, plan.slot_weight.data, sizeof weights);
  CHECK_ARRAY(weights, 0.5F, 2.0F, 0.0F, 0.0F, 4.0F, 1.0F);

  // The same memory, from a mask [tokens, 2], with one row per expert at most: token 2 is dropped
  // by both.
  const uint8_t mask[tokens][2] = {{1, 1}, {0, 0}, {1, 1}};
  int64_t scratch_bytes = -1;
  REQUIRE(moe64_plan_scratch_bytes(tokens, top_k, experts, on_cpu(), &scratch_bytes) == MOE64_OK);
  moe64_plan_args args = moe64_plan_args_init();
  args.expert_mask = tensor2(mask, MOE64_DTYPE_UINT8, tokens, 2);
  args.experts_total = 2;
  args.capacity = 1;
  args.plan = plan;
  args.scratch = lend(scratch_bytes);
  REQUIRE(moe64_plan(&args, here()) == MOE64_OK);
  const int64_t few[] = {0, 1, 2};
  CHECK(memcmp(plan.expert_begin.data, few, sizeof few) == 0);
  const int64_t* counted = plan.status.data;
  CHECK(counted[MOE64_PLAN_KEPT] == 2 && counted[MOE64_PLAN_DROPPED] == 2);

  // Of four experts, this plan serves the last two: id 0 belongs elsewhere.
  const int64_t wide[tokens][top_k] = {{3, 0}, {-1, 4}, {2, 3}};
  memset(&args.expert_mask, 0, sizeof args.expert_mask);
  args.expert_ids = tensor2(wide, MOE64_DTYPE_INT64, tokens, top_k);
  args.experts_total = 4;
  args.first_expert = 2;
  args.capacity = -1;
  REQUIRE(moe64_plan(&args, here()) == MOE64_OK);
  const int64_t part[MOE64_PLAN_STATUS_COUNT] = {3, 2, 1, 0, 0, -1}, part_begin[] = {0, 1, 3};
  CHECK(memcmp(plan.status.data, part, sizeof part) == 0);
  CHECK(memcmp(plan.expert_begin.data, part_begin, sizeof part_begin) == 0);
  CHECK_FORCED(moe64_plan, args);
  free(args.scratch.data);
  free(memory.data);
}

static void test_gather_and_combine(void) {
  moe64_routing_plan plan;
  const moe64_workspace memory = make_plan(&plan);
  const float x[tokens][2] = {{1.0F, 2.0F}, {3.0F, 4.0F}, {5.0F, 6.0F}};
  float rows[slots][2], y[tokens][2];
  memset(rows, 0, sizeof rows);
  memset(y, 0xff, sizeof y);
  moe64_gather_args gather = moe64_gather_args_init();
  gather.x = tensor2(x, MOE64_DTYPE_F32, tokens, 2);
  gather.plan = plan;
  gather.weighted = 1;
  gather.rows = tensor2(rows, MOE64_DTYPE_F32, slots, 2);
  REQUIRE(moe64_gather(&gather, here()) == MOE64_OK);
  CHECK_ARRAY(rows, 2.0F, 4.0F, 20.0F, 24.0F, 0.5F, 1.0F, 5.0F, 6.0F, 0.0F, 0.0F, 0.0F, 0.0F);

  moe64_combine_args combine = moe64_combine_args_init();
  combine.rows = plain(gather.rows);
  combine.plan = plan;
  combine.y = tensor2(y, MOE64_DTYPE_F32, tokens, 2);
  REQUIRE(moe64_combine(&combine, here()) == MOE64_OK);
  CHECK_ARRAY(y, 2.5F, 5.0F, 0.0F, 0.0F, 25.0F, 30.0F);
  combine.weighted = 1;
  REQUIRE(moe64_combine(&combine, here()) == MOE64_OK);
  CHECK_ARRAY(y, 4.25F, 8.5F, 0.0F, 0.0F, 85.0F, 102.0F);

  // Codes take their scales along.
  const uint8_t codes[tokens][2] = {{1, 2}, {3, 4}, {5, 6}};
  const float scales[tokens][1] = {{10.0F}, {20.0F}, {30.0F}};
  uint8_t moved[slots][2] = {{0}};
  float moved_scales[slots][1] = {{0.0F}};
  gather.weighted = 0;
  gather.x = tensor2(codes, MOE64_DTYPE_INT8, tokens, 2);
  gather.scales = tensor2(scales, MOE64_DTYPE_F32, tokens, 1);
  gather.rows = tensor2(moved, MOE64_DTYPE_INT8, slots, 2);
  gather.row_scales = tensor2(moved_scales, MOE64_DTYPE_F32, slots, 1);
  REQUIRE(moe64_gather(&gather, here()) == MOE64_OK);
  const uint8_t want[slots][2] = {{1, 2}, {5, 6}, {1, 2}, {5, 6}, {0, 0}, {0, 0}};
  CHECK(memcmp(moved, want, sizeof want) == 0);
  CHECK_ARRAY(moved_scales, 10.0F, 30.0F, 10.0F, 30.0F, 0.0F, 0.0F);

  // Or they are made on the way, from numbers.
  memset(moved, 0, sizeof moved);
  memset(moved_scales, 0, sizeof moved_scales);
  gather.x = tensor2(x, MOE64_DTYPE_F32, tokens, 2);
  memset(&gather.scales, 0, sizeof gather.scales);
  gather.quantized.kind = MOE64_SCALE_ROW;
  REQUIRE(moe64_gather(&gather, here()) == MOE64_OK);
  const uint8_t made[slots][2] = {{64, 127}, {106, 127}, {64, 127}, {106, 127}, {0, 0}, {0, 0}};
  CHECK(memcmp(moved, made, sizeof made) == 0);
  CHECK(moved_scales[0][0] == 2.0F / 127.0F && moved_scales[3][0] == 6.0F / 127.0F);
  CHECK_FORCED(moe64_gather, gather);
  memset(&gather.quantized, 0, sizeof gather.quantized);
  gather.x = tensor2(codes, MOE64_DTYPE_INT8, tokens, 2);
  gather.scales = tensor2(scales, MOE64_DTYPE_F32, tokens, 1);
  CHECK_FORCED(moe64_gather, gather);
  CHECK_FORCED(moe64_combine, combine);
  free(memory.data);
}

static void test_slot_weight_gradient(void) {
  moe64_routing_plan plan;
  const moe64_workspace memory = make_plan(&plan);
  const float left[slots][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}},
              right[slots][2] = {{1, 1}, {1, -1}, {2, 0}, {0, 3}};
  const float bias_rows[slots][1] = {{1}, {2}, {3}, {4}}, bias[experts][1] = {{100}, {200}};
  float d_weights[tokens][top_k];
  memset(d_weights, 0xff, sizeof d_weights);
  moe64_slot_weight_gradient_args args = moe64_slot_weight_gradient_args_init();
  args.left = tensor2(left, MOE64_DTYPE_F32, slots, 2);
  args.right = tensor2(right, MOE64_DTYPE_F32, slots, 2);
  args.bias_rows = tensor2(bias_rows, MOE64_DTYPE_F32, slots, 1);
  args.bias = tensor2(bias, MOE64_DTYPE_F32, experts, 1);
  args.plan = plan;
  args.d_weights = tensor2(d_weights, MOE64_DTYPE_F32, tokens, top_k);
  REQUIRE(moe64_slot_weight_gradient(&args, here()) == MOE64_OK);
  CHECK_ARRAY(d_weights, 610.0F, 103.0F, 0.0F, 0.0F, 199.0F, 824.0F);
  CHECK_FORCED(moe64_slot_weight_gradient, args);
  free(memory.data);
}

// ---- grouped_gemm -------------------------------------------------------------------------------

/// Two rows of expert 0, one of expert 1, one row of capacity to spare.
static const int64_t expert_begin[3] = {0, 2, 3};
static const float rows_x[4][2] = {{1, 2}, {3, 4}, {5, 6}, {0, 0}};

static void test_grouped_gemm(void) {
  const float values[2][3][2] = {{{1, 0}, {0, 1}, {1, 1}}, {{2, 0}, {0, 2}, {-1, 1}}};
  const float bias[2][3] = {{10, 20, 30}, {40, 50, 60}};
  const float u[4][1] = {{1}, {2}, {3}, {0}}, b[2][3][1] = {{{2}, {4}, {6}}, {{8}, {10}, {12}}};
  float y[4][3];
  memset(y, 0, sizeof y);
  moe64_weights* weights = f32_stack(values, 2, 3, 2);
  moe64_weights* low_rank = f32_stack(b, 2, 3, 1);
  moe64_grouped_gemm_args args = moe64_grouped_gemm_args_init();
  args.x = plain(tensor2(rows_x, MOE64_DTYPE_F32, 4, 2));
  args.weights = weights;
  args.expert_begin = tensor1(expert_begin, MOE64_DTYPE_INT64, 3);
  args.bias[0] = tensor2(bias, MOE64_DTYPE_F32, 2, 3);
  args.low_rank.u = tensor2(u, MOE64_DTYPE_F32, 4, 1);
  args.low_rank.weights = low_rank;
  args.low_rank.scaling = 0.5F;
  args.y = tensor2(y, MOE64_DTYPE_F32, 4, 3);
  REQUIRE(moe64_grouped_gemm(&args, here()) == MOE64_OK);
  CHECK_ARRAY(y, 12, 24, 36, 15, 28, 43, 62, 77, 79, 0, 0, 0);

  args.scratch = lend(MOE64_GROUPED_GEMM_SCRATCH_BYTES);
  memset(y, 0, sizeof y);
  REQUIRE(moe64_grouped_gemm(&args, here()) == MOE64_OK);
  CHECK_ARRAY(y, 12, 24, 36, 15, 28, 43, 62, 77, 79, 0, 0, 0);
  args.y.data = args.scratch.data;
  CHECK(moe64_grouped_gemm(&args, here()) == MOE64_INVALID_ARGUMENT);
  CHECK(strstr(moe64_last_error(), "scratch") != NULL);
  args.y.data = y;
  free(args.scratch.data);
  memset(&args.scratch, 0, sizeof args.scratch);

  const float dy[4][3] = {{1, 1, 1}, {1, 2, 3}, {1, 0, 2}, {0, 0, 0}};
  float dx[4][2];
  memset(dx, 0, sizeof dx);
  moe64_grouped_gemm_args back = moe64_grouped_gemm_args_init();
  back.x = plain(tensor2(dy, MOE64_DTYPE_F32, 4, 3));
  back.weights = weights;
  back.expert_begin = args.expert_begin;
  back.transpose = 1;
  back.y = tensor2(dx, MOE64_DTYPE_F32, 4, 2);
  REQUIRE(moe64_grouped_gemm(&back, here()) == MOE64_OK);
  CHECK_ARRAY(dx, 2, 2, 4, 5, 0, 2, 0, 0);
  CHECK_FORCED(moe64_grouped_gemm, args);
  moe64_weights_destroy(low_rank);
  moe64_weights_destroy(weights);
}

static void test_grouped_gemm_wgrad(void) {
  const float dy[4][2] = {{1, 2}, {3, 4}, {5, 6}, {0, 0}};
  float d_gate[2][1][2], d_up[2][1][2], d_gate_bias[2][1], d_up_bias[2][1];
  memset(d_gate, 0xff, sizeof d_gate);
  memset(d_up, 0xff, sizeof d_up);
  moe64_grouped_gemm_wgrad_args args = moe64_grouped_gemm_wgrad_args_init();
  args.dy = tensor2(dy, MOE64_DTYPE_F32, 4, 2);
  args.x = tensor2(rows_x, MOE64_DTYPE_F32, 4, 2);
  args.expert_begin = tensor1(expert_begin, MOE64_DTYPE_INT64, 3);
  args.scaling = 0.5F;
  args.parts = 2;
  args.d_weights[0] = tensor3(d_gate, MOE64_DTYPE_F32, 2, 1, 2);
  args.d_weights[1] = tensor3(d_up, MOE64_DTYPE_F32, 2, 1, 2);
  args.d_bias[0] = tensor2(d_gate_bias, MOE64_DTYPE_F32, 2, 1);
  args.d_bias[1] = tensor2(d_up_bias, MOE64_DTYPE_F32, 2, 1);
  REQUIRE(moe64_grouped_gemm_wgrad(&args, here()) == MOE64_OK);
  CHECK_ARRAY(d_gate, 5.0F, 7.0F, 12.5F, 15.0F);
  CHECK_ARRAY(d_up, 7.0F, 10.0F, 15.0F, 18.0F);
  CHECK_ARRAY(d_gate_bias, 4.0F, 5.0F);
  CHECK_ARRAY(d_up_bias, 6.0F, 6.0F);
  CHECK_FORCED(moe64_grouped_gemm_wgrad, args);
}

// ---- activate -----------------------------------------------------------------------------------

static void test_activate(void) {
  const float gate[2][2] = {{1, 8}, {-2, 3}}, up[2][2] = {{3, -9}, {1, 5}};
  float out[2][2];
  memset(out, 0xff, sizeof out);
  moe64_activate_args args = moe64_activate_args_init();
  CHECK(args.activation.alpha == 1.702F && args.activation.limit == 7.0F);
  args.activation.kind = MOE64_GPTOSS_GLU;
  args.activation.alpha = 0.0F;  // sigmoid(0) = 0.5
  args.gate = tensor2(gate, MOE64_DTYPE_F32, 2, 2);
  args.up = tensor2(up, MOE64_DTYPE_F32, 2, 2);
  args.out = tensor2(out, MOE64_DTYPE_F32, 2, 2);
  REQUIRE(moe64_activate(&args, here()) == MOE64_OK);
  CHECK_ARRAY(out, 2.0F, -21.0F, -2.0F, 9.0F);

  args.activation.kind = MOE64_RELU2;
  memset(&args.up, 0, sizeof args.up);
  REQUIRE(moe64_activate(&args, here()) == MOE64_OK);
  CHECK_ARRAY(out, 1.0F, 64.0F, 0.0F, 9.0F);

  // live_rows: the second row stays as it was.
  const int64_t live[1] = {1};
  memset(out, 0, sizeof out);
  args.live_rows = tensor1(live, MOE64_DTYPE_INT64, 1);
  REQUIRE(moe64_activate(&args, here()) == MOE64_OK);
  CHECK_ARRAY(out, 1.0F, 64.0F, 0.0F, 0.0F);
  CHECK_FORCED(moe64_activate, args);
}

static void test_activate_backward(void) {
  moe64_routing_plan plan;
  const moe64_workspace memory = make_plan(&plan);  // rows 0 to 3 have weights 2, 4, 0.5 and 1
  const float gate[slots][1] = {{1}, {8}, {-2}, {3}}, up[slots][1] = {{3}, {-9}, {1}, {5}};
  const float d_out[slots][1] = {{1}, {1}, {4}, {2}};
  float d_gate[slots][1] = {{0}}, d_up[slots][1] = {{0}};
  moe64_activate_backward_args args = moe64_activate_backward_args_init();
  args.activation.kind = MOE64_GPTOSS_GLU;
  args.activation.alpha = 0.0F;
  args.gate = tensor2(gate, MOE64_DTYPE_F32, slots, 1);
  args.up = tensor2(up, MOE64_DTYPE_F32, slots, 1);
  args.d_out = tensor2(d_out, MOE64_DTYPE_F32, slots, 1);
  args.weighted_by = &plan;
  args.live_rows = plan.expert_begin;
  args.live_rows.data = (int64_t*)plan.expert_begin.data + experts;
  args.live_rows.extent[0] = 1;
  args.d_gate = tensor2(d_gate, MOE64_DTYPE_F32, slots, 1);
  args.d_up = tensor2(d_up, MOE64_DTYPE_F32, slots, 1);
  REQUIRE(moe64_activate_backward(&args, here()) == MOE64_OK);
  CHECK_ARRAY(d_gate, 4.0F, 0.0F, 2.0F, 6.0F, 0.0F, 0.0F);  // 0.5 * (up + 1) * weight * d_out
  CHECK_ARRAY(d_up, 1.0F, 0.0F, -2.0F, 3.0F, 0.0F, 0.0F);   // 0.5 * gate * weight * d_out
  CHECK_FORCED(moe64_activate_backward, args);
  free(memory.data);
}

int main(void) {
  CHECK(strcmp(moe64_last_error(), "") == 0);
  CHECK(strlen(moe64_version()) >= 5);
  test_quantize();
  test_dequantize();
  test_route();
  test_route_backward();
  test_plan();
  test_gather_and_combine();
  test_slot_weight_gradient();
  test_grouped_gemm();
  test_grouped_gemm_wgrad();
  test_activate();
  test_activate_backward();
  return failures();
}
