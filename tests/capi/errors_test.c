// The bad-input table: every status provoked through C, its message checked for the operation and
// the values, and the outputs, filled with a pattern before, checked to be untouched.
#define _GNU_SOURCE  // pthread_setattr_default_np
#include "check.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { pattern = 0x5a };

static int contains(const char* needle) { return strstr(moe64_last_error(), needle) != NULL; }

/// One line of the table: the status, and two things that the message must say.
#define REFUSED(call, status, operation, value) \
  do {                                          \
    CHECK((call) == (status));                  \
    CHECK(contains(operation));                 \
    CHECK(contains(value));                     \
  } while (0)

static int untouched(const void* data, size_t bytes) {
  const uint8_t* byte = data;
  for (size_t i = 0; i < bytes; ++i) {
    if (byte[i] != pattern) return 0;
  }
  return 1;
}

static moe64_stream here(void) { return moe64_cpu_stream(NULL); }

static moe64_device on_cuda(int16_t ordinal) {
  moe64_device device = on_cpu();
  device.kind = MOE64_DEVICE_CUDA;
  device.ordinal = ordinal;
  return device;
}

// ---- a small layer and a small plan, both sound -------------------------------------------------

enum { experts = 2, hidden = 4, inter = 3, tokens = 2, top_k = 1 };
static const uint8_t codes[experts * 2 * inter * hidden], down_codes[experts * hidden * inter];
static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const float x[tokens][hidden] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
static int32_t ids[tokens][top_k] = {{0}, {1}};
static float y[tokens][hidden];

static moe64_layer_desc sound_desc(void) {
  const moe64_tensor grid = tensor3(ones, MOE64_DTYPE_F32, experts, 1, 1);
  const moe64_quantized half = scaled(tensor3(codes, MOE64_DTYPE_E4M3, experts, inter, hidden),
                                      grid, MOE64_SCALE_BLOCK, 128, 128);
  const moe64_quantized back = scaled(tensor3(down_codes, MOE64_DTYPE_E4M3, experts, hidden, inter),
                                      grid, MOE64_SCALE_BLOCK, 128, 128);
  moe64_weights *gate_up = NULL, *down = NULL;
  REQUIRE(moe64_weights_gate_up(&half, &half, &gate_up) == MOE64_OK);
  REQUIRE(moe64_weights_single(&back, &down) == MOE64_OK);
  moe64_layer_desc desc = moe64_layer_desc_init();
  desc.gate_up.weights = gate_up;
  desc.down.weights = down;
  return desc;
}

static moe64_layer* sound_layer(void) {
  const moe64_layer_desc desc = sound_desc();
  moe64_layer* layer = NULL;
  REQUIRE(moe64_layer_create(&desc, &layer) == MOE64_OK);
  moe64_weights_destroy((moe64_weights*)desc.gate_up.weights);
  moe64_weights_destroy((moe64_weights*)desc.down.weights);
  return layer;
}

static moe64_layer_shape sound_shape(void) {
  const moe64_layer_shape shape = {tokens, top_k, MOE64_DTYPE_F32, {0}};
  return shape;
}

static moe64_forward_args sound_forward(const moe64_layer* layer) {
  const moe64_layer_shape shape = sound_shape();
  int64_t bytes = -1;
  REQUIRE(moe64_forward_bytes(layer, &shape, 0, on_cpu(), &bytes) == MOE64_OK);
  moe64_forward_args args = moe64_forward_args_init();
  args.x = tensor2(x, MOE64_DTYPE_F32, tokens, hidden);
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT32, tokens, top_k);
  args.y = tensor2(y, MOE64_DTYPE_F32, tokens, hidden);
  args.scratch = lend(bytes);
  memset(y, pattern, sizeof y);
  return args;
}

/// Args of plan over `memory`, every byte of which is the pattern.
static moe64_plan_args sound_plan(moe64_workspace* memory) {
  int64_t bytes = -1, scratch = -1;
  REQUIRE(moe64_plan_bytes(tokens, top_k, experts, &bytes) == MOE64_OK);
  REQUIRE(moe64_plan_scratch_bytes(tokens, top_k, experts, on_cpu(), &scratch) == MOE64_OK);
  *memory = lend(bytes);
  moe64_plan_args args = moe64_plan_args_init();
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT32, tokens, top_k);
  args.experts_total = experts;
  args.scratch = lend(scratch);
  REQUIRE(moe64_bind_plan(memory, tokens, top_k, experts, &args.plan) == MOE64_OK);
  return args;
}

/// A gather over a plan that was really made; outputs are the pattern.
static float rows[tokens * top_k][hidden];
static moe64_gather_args sound_gather(moe64_workspace* memory) {
  moe64_plan_args plan = sound_plan(memory);
  REQUIRE(moe64_plan(&plan, here()) == MOE64_OK);
  free(plan.scratch.data);
  moe64_gather_args args = moe64_gather_args_init();
  args.x = tensor2(x, MOE64_DTYPE_F32, tokens, hidden);
  args.plan = plan.plan;
  args.rows = tensor2(rows, MOE64_DTYPE_F32, tokens * top_k, hidden);
  memset(rows, pattern, sizeof rows);
  return args;
}

// ---- the codes ----------------------------------------------------------------------------------

static void test_operands(void) {
  moe64_workspace memory;
  const moe64_gather_args good = sound_gather(&memory);
  moe64_gather_args args = good;
  args.rows = tensor2(rows, MOE64_DTYPE_F32, tokens * top_k, hidden - 1);
  REFUSED(moe64_gather(&args, here()), MOE64_SHAPE_MISMATCH, "[gather] rows", "[2, 3]");
  args = good;
  args.rows = tensor2(rows, MOE64_DTYPE_BF16, tokens * top_k, hidden);
  REFUSED(moe64_gather(&args, here()), MOE64_DTYPE_MISMATCH, "[gather] rows", "bf16");
  args = good;
  args.x.device = on_cuda(3);
  REFUSED(moe64_gather(&args, here()), MOE64_DEVICE_MISMATCH, "[gather] x", "cuda:3");
  args = good;
  args.x.dtype = MOE64_DTYPE_E4M3;
  args.rows.dtype = MOE64_DTYPE_E4M3;
  REFUSED(moe64_gather(&args, here()), MOE64_MISSING_SCALE, "[gather] x", "e4m3");
  args = good;
  args.x.data = NULL;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] x", "null");
  args = good;
  args.rows.extent[0] = args.plan.tokens = INT64_MAX;
  args.plan.top_k = 2;
  REFUSED(moe64_gather(&args, here()), MOE64_SIZE_OVERFLOW, "[", "9223372036854775807");
  args = good;
  args.implementation = "no_such_thing";
  REFUSED(moe64_gather(&args, here()), MOE64_UNSUPPORTED, "[gather]", "no_such_thing");
  CHECK(untouched(rows, sizeof rows));
  CHECK(moe64_gather(&good, here()) == MOE64_OK);
  CHECK(memcmp(rows, x, sizeof x) == 0);
  free(memory.data);
}

static void test_missing_scale(void) {
  moe64_weights* weights = (moe64_weights*)x;  // any value: it must not change
  moe64_quantized q = plain(tensor3(codes, MOE64_DTYPE_E4M3, experts, inter, hidden));
  REFUSED(moe64_weights_single(&q, &weights), MOE64_MISSING_SCALE, "scale", "[2, 3, 4] e4m3");
  q.layout.kind = MOE64_SCALE_ROW;
  REFUSED(moe64_weights_single(&q, &weights), MOE64_MISSING_SCALE, "scale", "[2, 3, 4] e4m3");
  q.scales = tensor3(ones, MOE64_DTYPE_F32, experts, inter, 2);
  REFUSED(moe64_weights_single(&q, &weights), MOE64_SHAPE_MISMATCH, "[2, 3, 2]", "[2, 3, 1]");
  memset(&q.values, 0, sizeof q.values);
  REFUSED(moe64_weights_single(&q, &weights), MOE64_INVALID_ARGUMENT, "[weights_single] matrix",
          "absent");
  CHECK(weights == (moe64_weights*)x);
}

static void test_size_overflow(void) {
  int64_t bytes = 77;
  REFUSED(moe64_plan_bytes(INT64_C(1) << 62, 4, 1, &bytes), MOE64_SIZE_OVERFLOW, "[",
          "4611686018427387904");
  CHECK(bytes == 77);
  moe64_tensor out;
  memset(&out, pattern, sizeof out);
  const int64_t extents[2] = {INT64_C(1) << 40, INT64_C(1) << 40}, negative[1] = {-5};
  REFUSED(moe64_contiguous(NULL, MOE64_DTYPE_F32, 2, extents, on_cpu(), &out), MOE64_SIZE_OVERFLOW,
          "[", "1099511627776");
  REFUSED(moe64_contiguous(NULL, MOE64_DTYPE_F32, 1, negative, on_cpu(), &out),
          MOE64_INVALID_ARGUMENT, "[", "-5");
  REFUSED(moe64_contiguous(NULL, MOE64_DTYPE_F32, 4, extents, on_cpu(), &out),
          MOE64_INVALID_ARGUMENT, "[contiguous] rank", "4");
  CHECK(untouched(&out, sizeof out));
}

static void test_plan_and_workspace(void) {
  moe64_workspace memory;
  const moe64_plan_args good = sound_plan(&memory);
  ids[1][0] = 7;
  moe64_plan_args args = good;
  REFUSED(moe64_plan(&args, here()), MOE64_INVALID_EXPERT, "[plan]", "7");
  ids[1][0] = 1;
  args.scratch.bytes -= 1;
  if (good.scratch.bytes > 0) {
    REFUSED(moe64_plan(&args, here()), MOE64_WORKSPACE_TOO_SMALL, "[plan] scratch", "needed");
  }
  CHECK(untouched(memory.data, (size_t)memory.bytes));

  moe64_routing_plan plan;
  memset(&plan, pattern, sizeof plan);
  moe64_workspace less = memory;
  less.bytes -= 1;
  REFUSED(moe64_bind_plan(&less, tokens, top_k, experts, &plan), MOE64_WORKSPACE_TOO_SMALL,
          "[bind_plan] memory", "needed");
  less = memory;
  less.data = (char*)memory.data + 8;
  REFUSED(moe64_bind_plan(&less, tokens, top_k, experts, &plan), MOE64_WORKSPACE_TOO_SMALL,
          "[bind_plan] memory", "64");
  REFUSED(moe64_bind_plan(&memory, -1, top_k, experts, &plan), MOE64_INVALID_ARGUMENT, "[plan]",
          "-1");
  CHECK(untouched(&plan, sizeof plan));
  free(good.scratch.data);
  free(memory.data);
}

static void test_layer(void) {
  moe64_layer* layer = sound_layer();
  const moe64_forward_args good = sound_forward(layer);
  moe64_forward_args args = good;
  args.scratch.bytes -= 1;
  REFUSED(moe64_forward(layer, &args, here()), MOE64_WORKSPACE_TOO_SMALL, "[forward]", "needed");
  ids[0][0] = -2;
  REFUSED(moe64_forward(layer, &good, here()), MOE64_INVALID_EXPERT, "[", "-2");
  ids[0][0] = 0;
  args = good;
  args.x = tensor2(x, MOE64_DTYPE_F32, tokens, hidden - 1);
  REFUSED(moe64_forward(layer, &args, here()), MOE64_SHAPE_MISMATCH, "[forward]", "3");
  args = good;
  args.y.device = on_cuda(0);
  REFUSED(moe64_forward(layer, &args, here()), MOE64_DEVICE_MISMATCH, "[forward]", "cuda:0");
  args = good;
  args.expert_ids.dtype = MOE64_DTYPE_F32;
  REFUSED(moe64_forward(layer, &args, here()), MOE64_DTYPE_MISMATCH, "expert_ids", "f32");
  CHECK(untouched(y, sizeof y));
  CHECK(moe64_forward(layer, &good, here()) == MOE64_OK);
  CHECK(!untouched(y, sizeof y));
  free(good.scratch.data);

  // The gradient of a quantised weight does not exist.
  float gradient[experts][hidden][inter];
  memset(gradient, pattern, sizeof gradient);
  moe64_layer_gradients want = moe64_layer_gradients_init();
  want.down.weights[0] = tensor3(gradient, MOE64_DTYPE_F32, experts, hidden, inter);
  moe64_backward_args backward = moe64_backward_args_init();
  backward.x = good.x;
  backward.dy = tensor2(x, MOE64_DTYPE_F32, tokens, hidden);
  backward.top_k = top_k;
  backward.saved = lend(1 << 16);
  backward.scratch = lend(1 << 16);
  backward.gradients = &want;
  REFUSED(moe64_backward(layer, &backward, here()), MOE64_UNSUPPORTED, "[backward]", "e4m3");
  CHECK(untouched(gradient, sizeof gradient));
  free(backward.scratch.data);
  free(backward.saved.data);
  moe64_layer_destroy(layer);

  moe64_layer_desc desc = sound_desc();
  desc.mode = MOE64_MODE_NATIVE;
  REQUIRE(moe64_layer_create(&desc, &layer) == MOE64_OK);
  moe64_compute_mode mode = 77;
  char reason[8];
  memset(reason, pattern, sizeof reason);
  REFUSED(moe64_resolve_mode(layer, MOE64_DTYPE_BF16, on_cpu(), &mode, reason, sizeof reason),
          MOE64_UNSUPPORTED, "native", "e4m3");
  REFUSED(moe64_resolve_mode(layer, MOE64_DTYPE_BF16, on_cpu(), &mode, NULL, 8),
          MOE64_INVALID_ARGUMENT, "[resolve_mode] reason", "8");
  REFUSED(moe64_resolve_mode(layer, 99, on_cpu(), &mode, reason, sizeof reason),
          MOE64_INVALID_ARGUMENT, "[resolve_mode] io", "99");
  REFUSED(moe64_resolve_mode(layer, MOE64_DTYPE_E4M3, on_cpu(), &mode, reason, sizeof reason),
          MOE64_DTYPE_MISMATCH, "io is e4m3", "bf16");
  CHECK(mode == 77 && untouched(reason, sizeof reason));
  moe64_layer_destroy(layer);
  moe64_weights_destroy((moe64_weights*)desc.gate_up.weights);
  moe64_weights_destroy((moe64_weights*)desc.down.weights);
}

// ---- what only C can get wrong ------------------------------------------------------------------

static void test_null(void) {
  moe64_layer* layer = sound_layer();
  const moe64_layer_shape shape = sound_shape();
  const moe64_layer_gradients want = moe64_layer_gradients_init();
  const moe64_device cpu = on_cpu();
  moe64_tensor out;
  moe64_weights* weights = NULL;
  moe64_routing_plan plan;
  moe64_workspace memory = lend(4096);
  const moe64_quantized q = plain(tensor2(x, MOE64_DTYPE_F32, tokens, hidden));
  int64_t bytes = 77;
#define NULL_REFUSED(call, operation, argument) \
  REFUSED(call, MOE64_INVALID_ARGUMENT, "[" operation "] " argument, "NULL")
  NULL_REFUSED(moe64_quantize(NULL, here()), "quantize", "args");
  NULL_REFUSED(moe64_dequantize(NULL, here()), "dequantize", "args");
  NULL_REFUSED(moe64_route(NULL, here()), "route", "args");
  NULL_REFUSED(moe64_route_backward(NULL, here()), "route_backward", "args");
  NULL_REFUSED(moe64_plan(NULL, here()), "plan", "args");
  NULL_REFUSED(moe64_gather(NULL, here()), "gather", "args");
  NULL_REFUSED(moe64_combine(NULL, here()), "combine", "args");
  NULL_REFUSED(moe64_slot_weight_gradient(NULL, here()), "slot_weight_gradient", "args");
  NULL_REFUSED(moe64_grouped_gemm(NULL, here()), "grouped_gemm", "args");
  NULL_REFUSED(moe64_grouped_gemm_wgrad(NULL, here()), "grouped_gemm_wgrad", "args");
  NULL_REFUSED(moe64_activate(NULL, here()), "activate", "args");
  NULL_REFUSED(moe64_activate_backward(NULL, here()), "activate_backward", "args");
  NULL_REFUSED(moe64_plan_bytes(1, 1, 1, NULL), "plan_bytes", "bytes");
  NULL_REFUSED(moe64_plan_scratch_bytes(1, 1, 1, cpu, NULL), "plan_scratch_bytes", "bytes");
  NULL_REFUSED(moe64_bind_plan(NULL, 1, 1, 1, &plan), "bind_plan", "memory");
  NULL_REFUSED(moe64_bind_plan(&memory, 1, 1, 1, NULL), "bind_plan", "plan");
  NULL_REFUSED(moe64_contiguous(x, MOE64_DTYPE_F32, 1, NULL, cpu, &out), "contiguous", "extents");
  NULL_REFUSED(moe64_contiguous(x, MOE64_DTYPE_F32, 1, &bytes, cpu, NULL), "contiguous", "tensor");
  NULL_REFUSED(moe64_split_gate_up(NULL, 0, &out), "split_gate_up", "fused");
  NULL_REFUSED(moe64_split_gate_up(&q.values, 0, NULL), "split_gate_up", "halves");
  NULL_REFUSED(moe64_weights_single(NULL, &weights), "weights_single", "matrix");
  NULL_REFUSED(moe64_weights_single(&q, NULL), "weights_single", "weights");
  NULL_REFUSED(moe64_weights_gate_up(NULL, &q, &weights), "weights_gate_up", "gate");
  NULL_REFUSED(moe64_weights_gate_up(&q, NULL, &weights), "weights_gate_up", "up");
  NULL_REFUSED(moe64_weights_gate_up(&q, &q, NULL), "weights_gate_up", "weights");
  NULL_REFUSED(moe64_layer_create(NULL, &layer), "layer_create", "desc");
  moe64_layer_desc desc = moe64_layer_desc_init();
  NULL_REFUSED(moe64_layer_create(&desc, NULL), "layer_create", "layer");
  NULL_REFUSED(moe64_layer_create(&desc, &layer), "layer_create", "gate_up.weights");
  NULL_REFUSED(moe64_resolve_mode(NULL, MOE64_DTYPE_BF16, cpu, NULL, NULL, 0), "resolve_mode",
               "layer");
  NULL_REFUSED(moe64_resolve_mode(layer, MOE64_DTYPE_BF16, cpu, NULL, NULL, 0), "resolve_mode",
               "mode");
  NULL_REFUSED(moe64_saved_bytes(NULL, &shape, cpu, &bytes), "saved_bytes", "layer");
  NULL_REFUSED(moe64_saved_bytes(layer, NULL, cpu, &bytes), "saved_bytes", "shape");
  NULL_REFUSED(moe64_saved_bytes(layer, &shape, cpu, NULL), "saved_bytes", "bytes");
  NULL_REFUSED(moe64_forward_bytes(NULL, &shape, 0, cpu, &bytes), "forward_bytes", "layer");
  NULL_REFUSED(moe64_forward_bytes(layer, NULL, 0, cpu, &bytes), "forward_bytes", "shape");
  NULL_REFUSED(moe64_forward_bytes(layer, &shape, 0, cpu, NULL), "forward_bytes", "bytes");
  NULL_REFUSED(moe64_backward_bytes(layer, &shape, NULL, cpu, &bytes), "backward_bytes",
               "gradients");
  NULL_REFUSED(moe64_backward_bytes(layer, &shape, &want, cpu, NULL), "backward_bytes", "bytes");
  NULL_REFUSED(moe64_forward(NULL, NULL, here()), "forward", "layer");
  NULL_REFUSED(moe64_forward(layer, NULL, here()), "forward", "args");
  NULL_REFUSED(moe64_saved_plan(layer, &shape, NULL, &plan), "saved_plan", "saved");
  NULL_REFUSED(moe64_saved_plan(layer, &shape, &memory, NULL), "saved_plan", "plan");
  NULL_REFUSED(moe64_backward(NULL, NULL, here()), "backward", "layer");
  NULL_REFUSED(moe64_backward(layer, NULL, here()), "backward", "args");
  const moe64_backward_args backward = moe64_backward_args_init();
  NULL_REFUSED(moe64_backward(layer, &backward, here()), "backward", "gradients");
  const moe64_grouped_gemm_args gemm = moe64_grouped_gemm_args_init();
  NULL_REFUSED(moe64_grouped_gemm(&gemm, here()), "grouped_gemm", "weights");
  NULL_REFUSED(moe64_cpu_pool_create(1, NULL), "cpu_pool_create", "executor");
  NULL_REFUSED(moe64_executor_create(NULL, NULL), "executor_create", "vtable");
  const moe64_executor_vtable vtable = moe64_executor_vtable_init();
  moe64_executor* executor = NULL;
  NULL_REFUSED(moe64_executor_create(&vtable, &executor), "executor_create", "vtable.run");
  CHECK(bytes == 77 && weights == NULL && executor == NULL);
  moe64_weights_destroy(NULL);
  moe64_layer_destroy(NULL);
  moe64_executor_destroy(NULL);
  moe64_layer_destroy(layer);
  free(memory.data);
}

static void test_enumerators(void) {
  moe64_workspace memory;
  const moe64_gather_args good = sound_gather(&memory);
  moe64_gather_args args = good;
  args.x.dtype = 77;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] x.dtype", "77");
  args = good;
  args.x.rank = 4;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] x.rank", "4");
  args = good;
  args.x.device.kind = 9;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] x.device.kind", "9");
  args = good;
  args.plan.status.dtype = 99;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] plan.status.dtype", "99");
  args = good;
  args.weighted = 2;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] weighted", "2");
  args = good;
  args.reserved[6] = 1;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather].reserved", "not 0");
  args = good;
  args.rows.reserved = 1;
  REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] rows.reserved", "not 0");
  moe64_stream stream = here();
  stream.device.kind = 5;
  REFUSED(moe64_gather(&good, stream), MOE64_INVALID_ARGUMENT, "[gather] stream.device.kind", "5");
  CHECK(untouched(rows, sizeof rows));
  free(memory.data);

  moe64_activate_args activate = moe64_activate_args_init();
  activate.activation.kind = 9;
  REFUSED(moe64_activate(&activate, here()), MOE64_INVALID_ARGUMENT, "[activate] activation.kind",
          "9");
  moe64_route_args route = moe64_route_args_init();
  route.options.score = 3;
  REFUSED(moe64_route(&route, here()), MOE64_INVALID_ARGUMENT, "[route] options.score", "3");
  route.options.score = 0;
  route.options.group_by = 2;
  REFUSED(moe64_route(&route, here()), MOE64_INVALID_ARGUMENT, "[route] options.group_by", "2");
  moe64_quantize_args quantize = moe64_quantize_args_init();
  quantize.layout.kind = 5;
  REFUSED(moe64_quantize(&quantize, here()), MOE64_INVALID_ARGUMENT, "[quantize] layout.kind", "5");
  quantize.layout.kind = 0;
  quantize.global.applied = 2;
  REFUSED(moe64_quantize(&quantize, here()), MOE64_INVALID_ARGUMENT, "[quantize] global.applied",
          "2");
  moe64_tensor out[2];
  const moe64_tensor fused = tensor2(x, MOE64_DTYPE_F32, tokens, hidden);
  REFUSED(moe64_split_gate_up(&fused, 2, out), MOE64_INVALID_ARGUMENT, "[split_gate_up] layout",
          "2");

  const moe64_layer_desc sound = sound_desc();
  moe64_layer* layer = NULL;
  moe64_layer_desc desc = sound;
  desc.mode = 4;
  REFUSED(moe64_layer_create(&desc, &layer), MOE64_INVALID_ARGUMENT, "[layer_create] mode", "4");
  desc = sound;
  desc.scheme = 2;
  REFUSED(moe64_layer_create(&desc, &layer), MOE64_INVALID_ARGUMENT, "[layer_create] scheme", "2");
  desc = sound;
  desc.weight_on = 6;
  REFUSED(moe64_layer_create(&desc, &layer), MOE64_INVALID_ARGUMENT, "[layer_create] weight_on",
          "6");
  CHECK(layer == NULL);
  moe64_weights_destroy((moe64_weights*)sound.gate_up.weights);
  moe64_weights_destroy((moe64_weights*)sound.down.weights);
}

static void test_struct_size(void) {
  moe64_workspace memory;
  const moe64_gather_args good = sound_gather(&memory);
  moe64_gather_args args = good;
  static const uint64_t wrong[] = {0, 7, sizeof args + 4, UINT64_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    args.struct_size = wrong[i];
    char number[32];
    snprintf(number, sizeof number, " %llu", (unsigned long long)wrong[i]);
    REFUSED(moe64_gather(&args, here()), MOE64_INVALID_ARGUMENT, "[gather] args.struct_size",
            number);
  }
  // A newer caller: what this library does not know must be zero.
  struct {
    moe64_gather_args known;
    uint64_t unknown[2];
  } newer = {good, {0, 0}};
  newer.known.struct_size = sizeof newer;
  newer.unknown[1] = 1;
  REFUSED(moe64_gather(&newer.known, here()), MOE64_INVALID_ARGUMENT, "[gather] args.struct_size",
          "is set");
  CHECK(untouched(rows, sizeof rows));
  newer.unknown[1] = 0;
  CHECK(moe64_gather(&newer.known, here()) == MOE64_OK);
  CHECK(memcmp(rows, x, sizeof x) == 0);
  // An older caller, whose struct ended before `implementation`: what lies behind it is not read.
  memset(rows, pattern, sizeof rows);
  args = good;
  args.struct_size = offsetof(moe64_gather_args, implementation);
  args.implementation = "no_such_thing";
  CHECK(moe64_gather(&args, here()) == MOE64_OK);
  CHECK(memcmp(rows, x, sizeof x) == 0);
  free(memory.data);
}

// ---- memory, threads, names ---------------------------------------------------------------------

/// Asks for a stack that no address space has, so that the system must refuse the thread, whoever
/// runs the test.
static void test_no_thread(void) {
  pthread_attr_t usual, absurd;
  REQUIRE(pthread_getattr_default_np(&usual) == 0);
  REQUIRE(pthread_attr_init(&absurd) == 0);
  REQUIRE(pthread_attr_setstacksize(&absurd, (size_t)1 << 47) == 0);
  REQUIRE(pthread_setattr_default_np(&absurd) == 0);
  moe64_executor* executor = NULL;
  REFUSED(moe64_cpu_pool_create(3, &executor), MOE64_OUT_OF_MEMORY, "[cpu_pool]", "thread");
  CHECK(executor == NULL);
  REQUIRE(pthread_setattr_default_np(&usual) == 0);
  REFUSED(moe64_cpu_pool_create(0, &executor), MOE64_INVALID_ARGUMENT, "[cpu_pool]", "0");
  REFUSED(moe64_cpu_pool_create(4097, &executor), MOE64_INVALID_ARGUMENT, "[cpu_pool]", "4097");
  CHECK(executor == NULL);
  CHECK(moe64_cpu_pool_create(3, &executor) == MOE64_OK);
  moe64_executor_destroy(executor);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/// In a child that may map no more memory: handles are made until the heap is used up.
static void test_no_memory(void) {
#ifndef SANITIZED  // sanitizers end the process instead
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const moe64_quantized q = plain(tensor2(x, MOE64_DTYPE_F32, tokens, hidden));
    const struct rlimit none = {0, 0};
    moe64_weights* weights = NULL;
    moe64_status status = MOE64_OK;
    if (setrlimit(RLIMIT_AS, &none) != 0) _exit(2);
    while (status == MOE64_OK) status = moe64_weights_single(&q, &weights);
    _exit(status == MOE64_OUT_OF_MEMORY && contains("memory") ? 0 : 1);
  }
  int result = -1;
  REQUIRE(waitpid(child, &result, 0) == child);
  CHECK(WIFEXITED(result) && WEXITSTATUS(result) == 0);
#endif
}

static void* fail_elsewhere(void* unused) {
  (void)unused;
  CHECK(strcmp(moe64_last_error(), "") == 0);
  REFUSED(moe64_plan(NULL, here()), MOE64_INVALID_ARGUMENT, "[plan]", "NULL");
  return NULL;
}

static void test_last_error(void) {
  REFUSED(moe64_gather(NULL, here()), MOE64_INVALID_ARGUMENT, "[gather]", "NULL");
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, fail_elsewhere, NULL) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
  CHECK(contains("[gather]"));
  int64_t bytes = 0;
  CHECK(moe64_plan_bytes(1, 1, 1, &bytes) == MOE64_OK);
  CHECK(contains("[gather]"));

  char name[5000];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  moe64_workspace memory;
  moe64_gather_args args = sound_gather(&memory);
  args.implementation = name;
  REFUSED(moe64_gather(&args, here()), MOE64_UNSUPPORTED, "[gather]", "nnn");
  CHECK(strlen(moe64_last_error()) == 2047);
  free(memory.data);
}

static void test_names(void) {
  static const char* const names[] = {"ok",
                                      "invalid_argument",
                                      "shape_mismatch",
                                      "dtype_mismatch",
                                      "device_mismatch",
                                      "missing_scale",
                                      "invalid_expert",
                                      "size_overflow",
                                      "workspace_too_small",
                                      "unsupported",
                                      "out_of_memory",
                                      "internal",
                                      "malformed_file",
                                      "io_failure",
                                      "interrupted",
                                      "device_failure"};
  for (moe64_status status = MOE64_OK; status <= MOE64_DEVICE_FAILURE; ++status) {
    CHECK(strcmp(moe64_status_name(status), names[status]) == 0);
  }
  CHECK(strcmp(moe64_status_name(-1), "unknown") == 0);
  CHECK(strcmp(moe64_status_name(16), "unknown") == 0);
}

int main(void) {
  test_operands();
  test_missing_scale();
  test_size_overflow();
  test_plan_and_workspace();
  test_layer();
  test_null();
  test_enumerators();
  test_struct_size();
  test_no_thread();
  test_no_memory();
  test_last_error();
  test_names();
  return failures();
}
