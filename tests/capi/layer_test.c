// One expert layer through the C ABI, forward and backward, against plain loops. All data are small
// whole numbers and powers of two, so that nothing rounds and every comparison is exact: gptoss_glu
// with alpha 0 is 0.5 * min(gate, limit) * (clamp(up) + 1).
#include "check.h"

#include <pthread.h>

enum { experts = 3, hidden = 10, inter = 6, tokens = 5, top_k = 2, rank = 2, block = 4 };
enum { slots = tokens * top_k, grid_hidden = 3, grid_inter = 2 };
static const double limit = 10.25, lora_scaling = 0.5;

// ---- the problem, as numbers --------------------------------------------------------------------

static float x[tokens][hidden], dy[tokens][hidden], slot_weight[tokens][top_k];
static const int32_t ids[tokens][top_k] = {{2, 0}, {-1, 1}, {1, 1}, {-1, experts}, {0, 2}};

// gate_up stacks hold gate rows, then up rows.
static uint8_t gate_up_codes[experts][2 * inter][hidden], down_codes[experts][hidden][inter];
static float gate_up_scales[experts][2 * grid_inter][grid_hidden];
static float down_scales[experts][grid_hidden][grid_inter];
static float gate_up[experts][2 * inter][hidden],
    down[experts][hidden][inter];  // what the codes mean
static float gate_up_bias[experts][2 * inter], down_bias[experts][hidden];
static float gate_up_a[experts][rank][hidden], gate_up_b[experts][2 * inter][rank];
static float down_a[experts][rank][inter], down_b[experts][hidden][rank];

static uint32_t random_state = 12345;
static int small(int bound) {  // a whole number in [-bound, bound]
  random_state = random_state * 1664525U + 1013904223U;
  return (int)((random_state >> 16) % (uint32_t)(2 * bound + 1)) - bound;
}

static void fill(float* values, size_t count, int bound) {
  for (size_t i = 0; i < count; ++i) values[i] = (float)small(bound);
}

static void make_problem(void) {
  fill(&x[0][0], sizeof x / sizeof(float), 2);
  fill(&dy[0][0], sizeof dy / sizeof(float), 2);
  fill(&gate_up_bias[0][0], sizeof gate_up_bias / sizeof(float), 2);
  fill(&down_bias[0][0], sizeof down_bias / sizeof(float), 2);
  fill(&gate_up_a[0][0][0], sizeof gate_up_a / sizeof(float), 1);
  fill(&gate_up_b[0][0][0], sizeof gate_up_b / sizeof(float), 1);
  fill(&down_a[0][0][0], sizeof down_a / sizeof(float), 1);
  fill(&down_b[0][0][0], sizeof down_b / sizeof(float), 1);
  for (int s = 0; s < slots; ++s) slot_weight[s / top_k][s % top_k] = (float)(1 << (s % 3)) * 0.5F;
  for (int e = 0; e < experts; ++e) {
    for (int r = 0; r < 2 * grid_inter; ++r) {
      for (int c = 0; c < grid_hidden; ++c) gate_up_scales[e][r][c] = (e + r + c) % 2 ? 0.5F : 1.0F;
    }
    for (int r = 0; r < grid_hidden; ++r) {
      for (int c = 0; c < grid_inter; ++c) down_scales[e][r][c] = (e + r + c) % 2 ? 1.0F : 0.5F;
    }
    for (int r = 0; r < 2 * inter; ++r) {
      for (int c = 0; c < hidden; ++c) {
        const int code = small(2), grid_row = r / inter * grid_inter + r % inter / block;
        gate_up_codes[e][r][c] = e4m3(code);
        gate_up[e][r][c] = (float)code * gate_up_scales[e][grid_row][c / block];
      }
    }
    for (int r = 0; r < hidden; ++r) {
      for (int c = 0; c < inter; ++c) {
        const int code = small(2);
        down_codes[e][r][c] = e4m3(code);
        down[e][r][c] = (float)code * down_scales[e][r / block][c / block];
      }
    }
  }
}

// ---- the layer in plain loops -------------------------------------------------------------------

static struct {
  double y[tokens][hidden], dx[tokens][hidden], d_slot[tokens][top_k];
  double gate_up[experts][2 * inter][hidden], down[experts][hidden][inter];
  double gate_up_bias[experts][2 * inter], down_bias[experts][hidden];
  double gate_up_a[experts][rank][hidden], gate_up_b[experts][2 * inter][rank];
  double down_a[experts][rank][inter], down_b[experts][hidden][rank];
} expected;

static double min(double left, double right) { return left < right ? left : right; }
static double clamp(double v) { return v < -limit ? -limit : min(v, limit); }

/// Adds one slot's share to everything; `extras`: with biases and LoRA.
static void add_slot(int t, int k, int e, int extras) {
  const double w = slot_weight[t][k], scaling = extras ? lora_scaling : 0.0,
               bias = extras ? 1.0 : 0.0;
  double u[rank] = {0}, z[2 * inter], h[inter], v[rank] = {0}, out[hidden];
  for (int r = 0; r < rank; ++r) {
    for (int c = 0; c < hidden; ++c) u[r] += gate_up_a[e][r][c] * x[t][c];
  }
  for (int i = 0; i < 2 * inter; ++i) {
    z[i] = bias * gate_up_bias[e][i];
    for (int c = 0; c < hidden; ++c) z[i] += gate_up[e][i][c] * x[t][c];
    for (int r = 0; r < rank; ++r) z[i] += scaling * gate_up_b[e][i][r] * u[r];
  }
  for (int i = 0; i < inter; ++i) h[i] = min(z[i], limit) * 0.5 * (clamp(z[inter + i]) + 1.0);
  for (int r = 0; r < rank; ++r) {
    for (int i = 0; i < inter; ++i) v[r] += down_a[e][r][i] * h[i];
  }
  for (int c = 0; c < hidden; ++c) {
    out[c] = bias * down_bias[e][c];
    for (int i = 0; i < inter; ++i) out[c] += down[e][c][i] * h[i];
    for (int r = 0; r < rank; ++r) out[c] += scaling * down_b[e][c][r] * v[r];
    expected.y[t][c] += w * out[c];
    expected.d_slot[t][k] += dy[t][c] * out[c];
  }

  double dv[rank] = {0}, dz[2 * inter], du[rank] = {0};
  for (int c = 0; c < hidden; ++c) {
    expected.down_bias[e][c] += w * dy[t][c];
    for (int i = 0; i < inter; ++i) expected.down[e][c][i] += w * dy[t][c] * h[i];
    for (int r = 0; r < rank; ++r) expected.down_b[e][c][r] += scaling * w * dy[t][c] * v[r];
    for (int r = 0; r < rank; ++r) dv[r] += scaling * down_b[e][c][r] * w * dy[t][c];
  }
  for (int i = 0; i < inter; ++i) {
    double dh = 0.0;
    for (int c = 0; c < hidden; ++c) dh += down[e][c][i] * w * dy[t][c];
    for (int r = 0; r < rank; ++r) dh += down_a[e][r][i] * dv[r];
    for (int r = 0; r < rank; ++r) expected.down_a[e][r][i] += dv[r] * h[i];
    const double gate = z[i], up = z[inter + i];
    dz[i] = gate < limit ? dh * 0.5 * (clamp(up) + 1.0) : 0.0;
    dz[inter + i] = up > -limit && up < limit ? dh * 0.5 * min(gate, limit) : 0.0;
  }
  for (int i = 0; i < 2 * inter; ++i) {
    expected.gate_up_bias[e][i] += dz[i];
    for (int c = 0; c < hidden; ++c) expected.gate_up[e][i][c] += dz[i] * x[t][c];
    for (int c = 0; c < hidden; ++c) expected.dx[t][c] += gate_up[e][i][c] * dz[i];
    for (int r = 0; r < rank; ++r) expected.gate_up_b[e][i][r] += scaling * dz[i] * u[r];
    for (int r = 0; r < rank; ++r) du[r] += scaling * gate_up_b[e][i][r] * dz[i];
  }
  for (int r = 0; r < rank; ++r) {
    for (int c = 0; c < hidden; ++c) {
      expected.gate_up_a[e][r][c] += du[r] * x[t][c];
      expected.dx[t][c] += gate_up_a[e][r][c] * du[r];
    }
  }
}

static void make_expected(int extras) {
  memset(&expected, 0, sizeof expected);
  for (int t = 0; t < tokens; ++t) {
    for (int k = 0; k < top_k; ++k) {
      if (ids[t][k] >= 0 && ids[t][k] < experts) add_slot(t, k, ids[t][k], extras);
    }
  }
}

/// Whether all are equal; names the first that is not.
static int same(const char* name, const float* got, const double* want, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if ((double)got[i] == want[i]) continue;
    fprintf(stderr, "%s[%zu] is %.9g, not %.9g\n", name, i, (double)got[i], want[i]);
    return 0;
  }
  return 1;
}
#define CHECK_SAME(got, want) \
  CHECK(same(#want, (const float*)&(got), (const double*)&(want), sizeof(want) / sizeof(double)))

// ---- the layer through the C ABI ----------------------------------------------------------------

static moe64_weights* f32_stack(const void* values, int64_t rows, int64_t cols) {
  const moe64_quantized q = plain(tensor3(values, MOE64_DTYPE_F32, experts, rows, cols));
  moe64_weights* weights = NULL;
  REQUIRE(moe64_weights_single(&q, &weights) == MOE64_OK);
  return weights;
}

/// Gate and up halves of a fused tensor [experts, 2 * rows, cols], with their halves of the scales
/// where there are.
static moe64_weights* two_parts(moe64_tensor fused, const moe64_tensor* scales) {
  moe64_tensor values[2], grids[2];
  memset(grids, 0, sizeof grids);
  REQUIRE(moe64_split_gate_up(&fused, MOE64_CONCATENATED, values) == MOE64_OK);
  if (scales != NULL) {
    REQUIRE(moe64_split_gate_up(scales, MOE64_CONCATENATED, grids) == MOE64_OK);
  }
  const moe64_scale_kind kind = scales == NULL ? MOE64_SCALE_NONE : MOE64_SCALE_BLOCK;
  const int64_t size = scales == NULL ? 0 : block;
  const moe64_quantized gate = scaled(values[0], grids[0], kind, size, size);
  const moe64_quantized up = scaled(values[1], grids[1], kind, size, size);
  moe64_weights* weights = NULL;
  REQUIRE(moe64_weights_gate_up(&gate, &up, &weights) == MOE64_OK);
  return weights;
}

/// `desc` comes with what is not about weights.
static moe64_layer* make_layer(int quantised, int extras, moe64_layer_desc desc) {
  moe64_weights* handles[6] = {NULL};
  if (quantised) {
    const moe64_tensor scales =
        tensor3(gate_up_scales, MOE64_DTYPE_F32, experts, 2 * grid_inter, grid_hidden);
    handles[0] =
        two_parts(tensor3(gate_up_codes, MOE64_DTYPE_E4M3, experts, 2 * inter, hidden), &scales);
    const moe64_quantized q =
        scaled(tensor3(down_codes, MOE64_DTYPE_E4M3, experts, hidden, inter),
               tensor3(down_scales, MOE64_DTYPE_F32, experts, grid_hidden, grid_inter),
               MOE64_SCALE_BLOCK, block, block);
    REQUIRE(moe64_weights_single(&q, &handles[1]) == MOE64_OK);
  } else {
    handles[0] = two_parts(tensor3(gate_up, MOE64_DTYPE_F32, experts, 2 * inter, hidden), NULL);
    handles[1] = f32_stack(down, hidden, inter);
  }
  desc.gate_up.weights = handles[0];
  desc.down.weights = handles[1];
  desc.activation.kind = MOE64_GPTOSS_GLU;
  desc.activation.alpha = 0.0F;
  desc.activation.limit = (float)limit;
  if (extras) {
    const moe64_tensor bias = tensor2(gate_up_bias, MOE64_DTYPE_F32, experts, 2 * inter);
    REQUIRE(moe64_split_gate_up(&bias, MOE64_CONCATENATED, desc.gate_up.bias) == MOE64_OK);
    desc.down.bias[0] = tensor2(down_bias, MOE64_DTYPE_F32, experts, hidden);
    desc.gate_up.lora.a = handles[2] = f32_stack(gate_up_a, rank, hidden);
    desc.gate_up.lora.b = handles[3] =
        two_parts(tensor3(gate_up_b, MOE64_DTYPE_F32, experts, 2 * inter, rank), NULL);
    desc.down.lora.a = handles[4] = f32_stack(down_a, rank, inter);
    desc.down.lora.b = handles[5] = f32_stack(down_b, hidden, rank);
    desc.gate_up.lora.scaling = desc.down.lora.scaling = (float)lora_scaling;
  }
  moe64_layer* layer = NULL;
  REQUIRE(moe64_layer_create(&desc, &layer) == MOE64_OK);
  for (int i = 0; i < 6; ++i) moe64_weights_destroy(handles[i]);  // the layer has its own copies
  return layer;
}

static struct {
  float y[tokens][hidden], dx[tokens][hidden], d_slot[tokens][top_k];
  float gate_up[experts][2 * inter][hidden], down[experts][hidden][inter];
  float gate_up_bias[experts][2 * inter], down_bias[experts][hidden];
  float gate_up_a[experts][rank][hidden], gate_up_b[experts][2 * inter][rank];
  float down_a[experts][rank][inter], down_b[experts][hidden][rank];
} got;

static void halves(void* fused, int64_t cols, moe64_tensor* out) {
  const moe64_tensor both = cols == 0 ? tensor2(fused, MOE64_DTYPE_F32, experts, 2 * inter)
                                      : tensor3(fused, MOE64_DTYPE_F32, experts, 2 * inter, cols);
  REQUIRE(moe64_split_gate_up(&both, MOE64_CONCATENATED, out) == MOE64_OK);
}

static moe64_layer_gradients ask_for(int weights, int extras) {
  moe64_layer_gradients want = moe64_layer_gradients_init();
  want.x = tensor2(got.dx, MOE64_DTYPE_F32, tokens, hidden);
  want.weights = tensor2(got.d_slot, MOE64_DTYPE_F32, tokens, top_k);
  if (weights) {
    halves(got.gate_up, hidden, want.gate_up.weights);
    want.down.weights[0] = tensor3(got.down, MOE64_DTYPE_F32, experts, hidden, inter);
  }
  if (extras) {
    halves(got.gate_up_bias, 0, want.gate_up.bias);
    want.down.bias[0] = tensor2(got.down_bias, MOE64_DTYPE_F32, experts, hidden);
    want.gate_up.lora_a = tensor3(got.gate_up_a, MOE64_DTYPE_F32, experts, rank, hidden);
    halves(got.gate_up_b, rank, want.gate_up.lora_b);
    want.down.lora_a = tensor3(got.down_a, MOE64_DTYPE_F32, experts, rank, inter);
    want.down.lora_b[0] = tensor3(got.down_b, MOE64_DTYPE_F32, experts, hidden, rank);
  }
  return want;
}

static void check_plan(const moe64_layer* layer, const moe64_layer_shape* shape,
                       const moe64_workspace* saved) {
  moe64_routing_plan plan;
  REQUIRE(moe64_saved_plan(layer, shape, saved, &plan) == MOE64_OK);
  CHECK(plan.tokens == tokens && plan.top_k == top_k && plan.experts == experts);
  const int64_t* status = plan.status.data;
  CHECK(status[MOE64_PLAN_KEPT] == 7 && status[MOE64_PLAN_SKIPPED] == 3);
  CHECK(status[MOE64_PLAN_INVALID] == 0 && status[MOE64_PLAN_FIRST_INVALID] == -1);
  const int64_t* begin = plan.expert_begin.data;
  CHECK(begin[0] == 0 && begin[1] == 2 && begin[2] == 5 && begin[3] == 7);
}

static void run_layer(int quantised, int extras, moe64_stream stream) {
  moe64_layer* layer = make_layer(quantised, extras, moe64_layer_desc_init());
  moe64_compute_mode mode = 77;
  char reason[200] = "";
  REQUIRE(moe64_resolve_mode(layer, MOE64_DTYPE_F32, on_cpu(), &mode, reason, sizeof reason) ==
          MOE64_OK);
  CHECK(mode == (quantised ? MOE64_MODE_W8A16 : MOE64_MODE_NATIVE));
  CHECK(strlen(reason) > 3);
  char start[4] = "xxx";
  CHECK(moe64_resolve_mode(layer, MOE64_DTYPE_F32, on_cpu(), &mode, start, 3) == MOE64_OK);
  CHECK(memcmp(start, reason, 2) == 0 && start[2] == '\0');

  const moe64_layer_shape shape = {tokens, top_k, MOE64_DTYPE_F32, {0}};
  const moe64_layer_gradients want = ask_for(!quantised, extras);
  int64_t saved_bytes = -1, forward_bytes = -1, plain_bytes = -1, backward_bytes = -1;
  REQUIRE(moe64_saved_bytes(layer, &shape, on_cpu(), &saved_bytes) == MOE64_OK);
  REQUIRE(moe64_forward_bytes(layer, &shape, 1, on_cpu(), &forward_bytes) == MOE64_OK);
  REQUIRE(moe64_forward_bytes(layer, &shape, 0, on_cpu(), &plain_bytes) == MOE64_OK);
  REQUIRE(moe64_backward_bytes(layer, &shape, &want, on_cpu(), &backward_bytes) == MOE64_OK);
  CHECK(saved_bytes > 0 && plain_bytes > forward_bytes && backward_bytes > 0);
  const moe64_layer_shape narrow = {tokens, top_k, MOE64_DTYPE_BF16, {0}};
  int64_t narrow_bytes = -1;
  REQUIRE(moe64_saved_bytes(layer, &narrow, on_cpu(), &narrow_bytes) == MOE64_OK);
  CHECK(narrow_bytes > 0 && narrow_bytes < saved_bytes);

  make_expected(extras);
  moe64_forward_args forward = moe64_forward_args_init();
  forward.x = tensor2(x, MOE64_DTYPE_F32, tokens, hidden);
  forward.expert_ids = tensor2(ids, MOE64_DTYPE_INT32, tokens, top_k);
  forward.weights = tensor2(slot_weight, MOE64_DTYPE_F32, tokens, top_k);
  forward.y = tensor2(got.y, MOE64_DTYPE_F32, tokens, hidden);

  memset(&got, 0xff, sizeof got);  // NaN
  forward.scratch = lend(plain_bytes);
  CHECK(moe64_forward(layer, &forward, stream) == MOE64_OK);
  CHECK_SAME(got.y, expected.y);
  free(forward.scratch.data);

  memset(&got, 0xff, sizeof got);
  forward.saved = lend(saved_bytes);
  forward.scratch = lend(forward_bytes);
  CHECK(moe64_forward(layer, &forward, stream) == MOE64_OK);
  CHECK_SAME(got.y, expected.y);
  free(forward.scratch.data);
  check_plan(layer, &shape, &forward.saved);

  moe64_backward_args backward = moe64_backward_args_init();
  backward.x = forward.x;
  backward.dy = tensor2(dy, MOE64_DTYPE_F32, tokens, hidden);
  backward.top_k = top_k;
  backward.saved = forward.saved;
  backward.scratch = lend(backward_bytes);
  backward.gradients = &want;
  CHECK(moe64_backward(layer, &backward, stream) == MOE64_OK);
  CHECK_SAME(got.dx, expected.dx);
  CHECK_SAME(got.d_slot, expected.d_slot);
  if (!quantised) {
    CHECK_SAME(got.gate_up, expected.gate_up);
    CHECK_SAME(got.down, expected.down);
  }
  if (extras) {
    CHECK_SAME(got.gate_up_bias, expected.gate_up_bias);
    CHECK_SAME(got.down_bias, expected.down_bias);
    CHECK_SAME(got.gate_up_a, expected.gate_up_a);
    CHECK_SAME(got.gate_up_b, expected.gate_up_b);
    CHECK_SAME(got.down_a, expected.down_a);
    CHECK_SAME(got.down_b, expected.down_b);
  }
  free(backward.scratch.data);
  free(backward.saved.data);
  moe64_layer_destroy(layer);
}

// ---- the options of a layer ---------------------------------------------------------------------

/// Forward of the quantised layer without extras into got.y; the plan's status into `status`.
static moe64_status forward_with(moe64_layer_desc desc, moe64_forward_args args, int64_t* status) {
  moe64_layer* layer = make_layer(1, 0, desc);
  const moe64_layer_shape shape = {tokens, top_k, MOE64_DTYPE_F32, {0}};
  int64_t saved_bytes = -1, forward_bytes = -1;
  REQUIRE(moe64_saved_bytes(layer, &shape, on_cpu(), &saved_bytes) == MOE64_OK);
  REQUIRE(moe64_forward_bytes(layer, &shape, 1, on_cpu(), &forward_bytes) == MOE64_OK);
  args.y = tensor2(got.y, MOE64_DTYPE_F32, tokens, hidden);
  args.saved = lend(saved_bytes);
  args.scratch = lend(forward_bytes);
  memset(&got, 0xff, sizeof got);
  const moe64_status answer = moe64_forward(layer, &args, moe64_cpu_stream(NULL));
  moe64_routing_plan plan;
  REQUIRE(moe64_saved_plan(layer, &shape, &args.saved, &plan) == MOE64_OK);
  memcpy(status, plan.status.data, MOE64_PLAN_STATUS_COUNT * sizeof *status);
  free(args.saved.data);
  free(args.scratch.data);
  moe64_layer_destroy(layer);
  return answer;
}

static void test_options(void) {
  int64_t status[MOE64_PLAN_STATUS_COUNT];
  moe64_forward_args args = moe64_forward_args_init();
  args.x = tensor2(x, MOE64_DTYPE_F32, tokens, hidden);
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT32, tokens, top_k);
  args.weights = tensor2(slot_weight, MOE64_DTYPE_F32, tokens, top_k);

  // A sub-range of eight experts that begins at 4: the same numbers, and what is below it is
  // elsewhere.
  int32_t shifted[tokens][top_k];
  for (int s = 0; s < slots; ++s) {
    const int32_t id = ids[s / top_k][s % top_k];
    shifted[s / top_k][s % top_k] = id < 0 ? -1 : id == experts ? 0 : id + 4;
  }
  moe64_layer_desc desc = moe64_layer_desc_init();
  desc.experts_total = 8;
  desc.first_expert = 4;
  moe64_forward_args part = args;
  part.expert_ids = tensor2(shifted, MOE64_DTYPE_INT32, tokens, top_k);
  make_expected(0);
  CHECK(forward_with(desc, part, status) == MOE64_OK);
  CHECK_SAME(got.y, expected.y);
  CHECK(status[MOE64_PLAN_SKIPPED] == 2 && status[MOE64_PLAN_ELSEWHERE] == 1);

  // One row per expert at most: slots 0 (expert 2), 1 (expert 0) and 3 (expert 1) come first.
  moe64_forward_args few = args;
  few.capacity = 1;
  memset(&expected, 0, sizeof expected);
  add_slot(0, 0, 2, 0);
  add_slot(0, 1, 0, 0);
  add_slot(1, 1, 1, 0);
  CHECK(forward_with(moe64_layer_desc_init(), few, status) == MOE64_OK);
  CHECK_SAME(got.y, expected.y);
  CHECK(status[MOE64_PLAN_KEPT] == 3 && status[MOE64_PLAN_DROPPED] == 4);

  // With one slot per token, a weight on the input is a multiple of x without a weight.
  static float twice[tokens][hidden], by_hand[tokens][hidden], two[tokens][top_k];
  static const int32_t one_slot[tokens][top_k] = {{0, -1}, {-1, 1}, {2, -1}, {-1, -1}, {-1, 0}};
  for (int s = 0; s < slots; ++s) two[s / top_k][s % top_k] = 2.0F;
  for (int i = 0; i < tokens * hidden; ++i) {
    twice[i / hidden][i % hidden] = 2.0F * x[i / hidden][i % hidden];
  }
  moe64_forward_args single = args;
  single.expert_ids = tensor2(one_slot, MOE64_DTYPE_INT32, tokens, top_k);
  single.x = tensor2(twice, MOE64_DTYPE_F32, tokens, hidden);
  memset(&single.weights, 0, sizeof single.weights);
  CHECK(forward_with(moe64_layer_desc_init(), single, status) == MOE64_OK);
  memcpy(by_hand, got.y, sizeof by_hand);
  single.x = args.x;
  single.weights = tensor2(two, MOE64_DTYPE_F32, tokens, top_k);
  desc = moe64_layer_desc_init();
  desc.weight_on = MOE64_WEIGHT_ON_INPUT;
  CHECK(forward_with(desc, single, status) == MOE64_OK);
  CHECK(memcmp(by_hand, got.y, sizeof by_hand) == 0);
  CHECK(forward_with(moe64_layer_desc_init(), single, status) == MOE64_OK);
  CHECK(memcmp(by_hand, got.y, sizeof by_hand) != 0);

  // The name of an implementation is copied: it need not outlive the call that makes the layer.
  char name[] = "no_such_thing";
  desc = moe64_layer_desc_init();
  desc.implementation = name;
  moe64_layer* layer = make_layer(1, 0, desc);
  memset(name, 'x', sizeof name - 1);
  const moe64_layer_shape shape = {tokens, top_k, MOE64_DTYPE_F32, {0}};
  int64_t bytes = -1;
  REQUIRE(moe64_forward_bytes(layer, &shape, 0, on_cpu(), &bytes) == MOE64_OK);
  moe64_forward_args forced = args;
  forced.y = tensor2(got.y, MOE64_DTYPE_F32, tokens, hidden);
  forced.scratch = lend(bytes);
  CHECK(moe64_forward(layer, &forced, moe64_cpu_stream(NULL)) == MOE64_UNSUPPORTED);
  CHECK(strstr(moe64_last_error(), "no_such_thing") != NULL);
  free(forced.scratch.data);
  moe64_layer_destroy(layer);

  moe64_compute_mode mode = 77;
  char unstated[200], dynamic[200];
  layer = make_layer(1, 0, moe64_layer_desc_init());
  CHECK(moe64_resolve_mode(layer, MOE64_DTYPE_BF16, on_cpu(), &mode, unstated, sizeof unstated) ==
        MOE64_OK);
  moe64_layer_destroy(layer);
  desc = moe64_layer_desc_init();
  desc.scheme = MOE64_SCHEME_DYNAMIC;
  layer = make_layer(1, 0, desc);
  CHECK(moe64_resolve_mode(layer, MOE64_DTYPE_BF16, on_cpu(), &mode, dynamic, sizeof dynamic) ==
        MOE64_OK);
  CHECK(strcmp(unstated, dynamic) != 0);
  moe64_layer_destroy(layer);
}

// ---- an executor of the host program ------------------------------------------------------------

struct host {
  int64_t runs;
};
struct share {
  int64_t begin, tasks;
  moe64_task task;
  void* context;
};

static int64_t host_concurrency(void* user_data) {
  (void)user_data;
  return 2;
}

static void* run_share(void* argument) {
  const struct share* share = argument;
  for (int64_t i = share->begin; i < share->tasks; i += 2) share->task(share->context, i);
  return NULL;
}

static void host_run(void* user_data, int64_t tasks, moe64_task task, void* context) {
  ++((struct host*)user_data)->runs;
  struct share even = {0, tasks, task, context}, odd = {1, tasks, task, context};
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, run_share, &odd) == 0);
  run_share(&even);
  REQUIRE(pthread_join(thread, NULL) == 0);
}

int main(void) {
  make_problem();
  moe64_executor* pool = NULL;
  REQUIRE(moe64_cpu_pool_create(3, &pool) == MOE64_OK);
  struct host host = {0};
  moe64_executor_vtable vtable = moe64_executor_vtable_init();
  vtable.user_data = &host;
  vtable.concurrency = host_concurrency;
  vtable.run = host_run;
  moe64_executor* own = NULL;
  REQUIRE(moe64_executor_create(&vtable, &own) == MOE64_OK);
  for (int quantised = 0; quantised < 2; ++quantised) {
    for (int extras = 0; extras < 2; ++extras) {
      run_layer(quantised, extras, moe64_cpu_stream(NULL));
      run_layer(quantised, extras, moe64_cpu_stream(pool));
      run_layer(quantised, extras, moe64_cpu_stream(own));
    }
  }
  CHECK(host.runs > 0);
  test_options();
  moe64_executor_destroy(own);
  moe64_executor_destroy(pool);
  return failures();
}
