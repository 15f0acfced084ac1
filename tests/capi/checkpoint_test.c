// A checkpoint written by hand, opened, described and loaded through the C ABI: the loaded layer
// must compute the same bits as one that is made from the same bytes in memory.
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <stdarg.h>
#include <unistd.h>

enum { experts = 3, hidden = 10, inter = 6, tokens = 4, top_k = 2, matrix = hidden * inter };

#define REFUSED(call, status, ...)                                     \
  do {                                                                 \
    CHECK((call) == (status));                                         \
    static const char* const parts[] = {__VA_ARGS__};                  \
    for (size_t part = 0; part < sizeof parts / sizeof *parts; ++part) \
      CHECK(strstr(moe64_last_error(), parts[part]) != NULL);          \
  } while (0)

// ---- the files ----------------------------------------------------------------------------------

static char folder[256];
static uint8_t codes[3][experts][matrix];  // gate, up, down
static float scales[3][experts];
static const char* const projections[3] = {"gate_proj", "up_proj", "down_proj"};

static const char* path_of(const char* name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void write_file(const char* name, const void* bytes, size_t count) {
  FILE* file = fopen(path_of(name), "wb");
  REQUIRE(file != NULL);
  REQUIRE(fwrite(bytes, 1, count, file) == count);
  REQUIRE(fclose(file) == 0);
}

static void append(char* text, size_t room, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const size_t length = strlen(text);
  vsnprintf(text + length, room - length, format, values);
  va_end(values);
}

/// All scales first, as the format wants its F32; without the scale of `dropped` (projection *
/// experts
/// + expert, or -1).
static void write_checkpoint(int dropped) {
  static char header[8192];
  static uint8_t data[3 * experts * (4 + matrix)];
  size_t at = 0;
  strcpy(header, "{");
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 3 * experts; ++i) {
      const int p = i / experts, e = i % experts;
      if (pass == 0 && i == dropped) continue;
      const size_t size = pass == 0 ? 4 : matrix;
      append(header, sizeof header,
             "%s\"model.layers.0.mlp.experts.%d.%s.weight%s\": {\"dtype\": \"%s\", \"shape\": [%d, "
             "%d], \"data_offsets\": [%zu, %zu]}",
             at == 0 ? "" : ", ", e, projections[p], pass == 0 ? "_scale_inv" : "",
             pass == 0 ? "F32" : "F8_E4M3",
             pass == 0 ? 1
             : p == 2  ? hidden
                       : inter,
             pass == 0 ? 1
             : p == 2  ? inter
                       : hidden,
             at, at + size);
      if (pass == 0) {
        memcpy(data + at, &scales[p][e], 4);
      } else {
        memcpy(data + at, codes[p][e], matrix);
      }
      at += size;
    }
  }
  append(header, sizeof header, "}");
  while (strlen(header) % 8 != 0) append(header, sizeof header, " ");
  const uint64_t length = strlen(header);
  static uint8_t file[sizeof data + sizeof header + 8];
  memcpy(file, &length, 8);
  memcpy(file + 8, header, length);
  memcpy(file + 8 + length, data, at);
  write_file("model.safetensors", file, 8 + length + at);
}

static void make_folder(void) {
  const char* where = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/moe64_capi_XXXXXX", where != NULL ? where : "/tmp");
  REQUIRE(mkdtemp(folder) != NULL);
  const char config[] =
      "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 10, \"moe_intermediate_size\": 6, "
      "\"num_experts\": 3, \"num_experts_per_tok\": 2, \"num_hidden_layers\": 1, \"hidden_act\": "
      "\"silu\", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, "
      "128]}}";
  write_file("config.json", config, sizeof config - 1);
  for (int p = 0; p < 3; ++p) {
    for (int e = 0; e < experts; ++e) {
      scales[p][e] = 0.125F * (float)(1 + p + 2 * e);
      for (int i = 0; i < matrix; ++i) codes[p][e][i] = e4m3((i * 7 + p + 3 * e) % 9 - 4);
    }
  }
  write_checkpoint(-1);
}

static moe64_checkpoint* open_folder(void) {
  moe64_checkpoint* checkpoint = NULL;
  REQUIRE(moe64_checkpoint_open(folder, NULL, &checkpoint) == MOE64_OK);
  return checkpoint;
}

// ---- what it says -------------------------------------------------------------------------------

static void test_description(void) {
  moe64_checkpoint* const checkpoint = open_folder();
  int64_t count = -1;
  CHECK(moe64_checkpoint_finding_count(checkpoint, &count) == MOE64_OK && count == 0);
  moe64_checkpoint_summary summary = moe64_checkpoint_summary_init();
  CHECK(moe64_checkpoint_summarize(checkpoint, &summary) == MOE64_OK);
  CHECK(strcmp(summary.model_type, "qwen3_moe") == 0 && strcmp(summary.quant_method, "fp8") == 0);
  CHECK(summary.hidden == hidden && summary.inter == inter && summary.experts == experts);
  CHECK(summary.top_k == 2 && summary.shards == 1 && summary.tensors == 18);
  CHECK(summary.expert_layers == 1 && summary.expert_parameters == 9 * matrix);
  CHECK(summary.weights_found == 9 && summary.scales_found == 9 && summary.matched == 9);
  moe64_checkpoint_layer layer = moe64_checkpoint_layer_init();
  CHECK(moe64_checkpoint_layer_at(checkpoint, 0, &layer) == MOE64_OK);
  CHECK(layer.layer == 0 && layer.sound == 1 && layer.mtp == 0 && layer.problem[0] == '\0');
  CHECK(strcmp(layer.dialect, "D8") == 0 && layer.experts == experts);
  CHECK(layer.gate.rows == inter && layer.gate.cols == hidden && layer.down.rows == hidden);
  CHECK(layer.gate.dtype == MOE64_DTYPE_E4M3 && layer.gate.scale_dtype == MOE64_DTYPE_F32);
  CHECK(layer.gate.layout.kind == MOE64_SCALE_BLOCK && layer.gate.layout.block_rows == 128);
  CHECK(layer.stored_bytes == 9 * (matrix + 4) && layer.loaded_bytes > layer.stored_bytes);
  // a caller that was compiled when the struct was shorter
  moe64_checkpoint_layer older = moe64_checkpoint_layer_init();
  older.struct_size = 16;
  older.experts = 77;
  CHECK(moe64_checkpoint_layer_at(checkpoint, 0, &older) == MOE64_OK);
  CHECK(older.struct_size == 16 && older.layer == 0 && older.experts == 77);
  REFUSED(moe64_checkpoint_layer_at(checkpoint, 1, &layer), MOE64_INVALID_ARGUMENT, "i is 1");
  REFUSED(moe64_checkpoint_layer_at(checkpoint, -1, &layer), MOE64_INVALID_ARGUMENT, "i is -1");
  layer.struct_size = 3;
  REFUSED(moe64_checkpoint_layer_at(checkpoint, 0, &layer), MOE64_INVALID_ARGUMENT, "struct_size");
  moe64_checkpoint_destroy(checkpoint);
  moe64_checkpoint_destroy(NULL);
}

// ---- loading ------------------------------------------------------------------------------------

static moe64_weights* stack_of(int first_projection, int parts, int64_t rows, int64_t cols) {
  moe64_quantized views[2];
  for (int p = 0; p < parts; ++p) {
    views[p] = scaled(tensor3(codes[first_projection + p], MOE64_DTYPE_E4M3, experts, rows, cols),
                      tensor3(scales[first_projection + p], MOE64_DTYPE_F32, experts, 1, 1),
                      MOE64_SCALE_BLOCK, 128, 128);
  }
  moe64_weights* weights = NULL;
  REQUIRE((parts == 2 ? moe64_weights_gate_up(&views[0], &views[1], &weights)
                      : moe64_weights_single(&views[0], &weights)) == MOE64_OK);
  return weights;
}

static moe64_layer* layer_by_hand(void) {
  moe64_layer_desc desc = moe64_layer_desc_init();
  moe64_weights* const gate_up = stack_of(0, 2, inter, hidden);
  moe64_weights* const down = stack_of(2, 1, hidden, inter);
  desc.gate_up.weights = gate_up;
  desc.down.weights = down;
  moe64_layer* layer = NULL;
  REQUIRE(moe64_layer_create(&desc, &layer) == MOE64_OK);
  moe64_weights_destroy(gate_up);
  moe64_weights_destroy(down);
  return layer;
}

static void forward(const moe64_layer* layer, float (*y)[hidden]) {
  static float x[tokens][hidden];
  static const int32_t ids[tokens][top_k] = {{0, 1}, {2, 1}, {1, 0}, {2, 0}};
  for (int i = 0; i < tokens * hidden; ++i) x[i / hidden][i % hidden] = 0.25F * (float)(i % 11 - 5);
  moe64_layer_shape shape;
  memset(&shape, 0, sizeof shape);
  shape.tokens = tokens;
  shape.top_k = top_k;
  shape.io = MOE64_DTYPE_F32;
  int64_t bytes = 0;
  REQUIRE(moe64_forward_bytes(layer, &shape, 0, on_cpu(), &bytes) == MOE64_OK);
  moe64_workspace const scratch = lend(bytes);
  moe64_forward_args args = moe64_forward_args_init();
  args.x = tensor2(x, MOE64_DTYPE_F32, tokens, hidden);
  args.expert_ids = tensor2(ids, MOE64_DTYPE_INT32, tokens, top_k);
  args.y = tensor2(y, MOE64_DTYPE_F32, tokens, hidden);
  args.scratch = scratch;
  REQUIRE(moe64_forward(layer, &args, moe64_cpu_stream(NULL)) == MOE64_OK);
  free(scratch.data);
}

static int64_t bytes_of(const moe64_checkpoint* checkpoint, const moe64_layer_request* request) {
  int64_t bytes = 0;
  REQUIRE(moe64_layer_bytes(checkpoint, request, &bytes) == MOE64_OK);
  return bytes;
}

static int count_reports(void* user_data, int64_t done, int64_t total) {
  ++*(int*)user_data;
  CHECK(done <= total && total == 9 * (matrix + 4));
  return 0;
}
static int stop(void* user_data, int64_t done, int64_t total) {
  (void)user_data;
  return done <= total;
}

static void test_loading(void) {
  moe64_checkpoint* const checkpoint = open_folder();
  const moe64_layer_request request = moe64_layer_request_init();
  moe64_workspace memory = lend(bytes_of(checkpoint, &request));
  moe64_executor* pool = NULL;
  REQUIRE(moe64_cpu_pool_create(2, &pool) == MOE64_OK);
  moe64_layer* loaded = NULL;
  int reports = 0;
  REQUIRE(moe64_load_layer(checkpoint, &request, &memory, moe64_cpu_stream(pool), count_reports,
                           &reports, &loaded) == MOE64_OK);
  CHECK(reports > 0);
  moe64_layer* untouched = NULL;
  REFUSED(moe64_load_layer(checkpoint, &request, &memory, moe64_cpu_stream(pool), stop, NULL,
                           &untouched),
          MOE64_INTERRUPTED, "asked to stop");
  CHECK(untouched == NULL);
  moe64_checkpoint_destroy(checkpoint);  // a loaded layer needs it no more
  moe64_layer* const by_hand = layer_by_hand();
  float got[tokens][hidden], wanted[tokens][hidden];
  forward(loaded, got);
  forward(by_hand, wanted);
  CHECK(memcmp(got, wanted, sizeof got) == 0);
  CHECK(wanted[0][0] != 0.0F && wanted[3][9] != wanted[0][0]);
  moe64_layer_destroy(loaded);
  moe64_layer_destroy(by_hand);
  moe64_executor_destroy(pool);
  free(memory.data);
}

static void test_expert_range(void) {
  moe64_checkpoint* const checkpoint = open_folder();
  moe64_layer_request request = moe64_layer_request_init();
  float sum[tokens][hidden] = {{0}};
  for (int rank = 0; rank < 2; ++rank) {
    request.first_expert = rank;  // expert 0, then experts 1 and 2
    request.experts = rank + 1;
    moe64_workspace memory = lend(bytes_of(checkpoint, &request));
    moe64_layer* layer = NULL;
    REQUIRE(moe64_load_layer(checkpoint, &request, &memory, moe64_cpu_stream(NULL), NULL, NULL,
                             &layer) == MOE64_OK);
    float y[tokens][hidden];
    forward(layer, y);
    for (int i = 0; i < tokens * hidden; ++i)
      sum[i / hidden][i % hidden] += y[i / hidden][i % hidden];
    moe64_layer_destroy(layer);
    free(memory.data);
  }
  moe64_layer* const by_hand = layer_by_hand();
  float wanted[tokens][hidden];
  forward(by_hand, wanted);
  for (int i = 0; i < tokens * hidden; ++i) {
    const float off = sum[i / hidden][i % hidden] - wanted[i / hidden][i % hidden];
    CHECK(off < 1e-4F && off > -1e-4F);
  }
  moe64_layer_destroy(by_hand);
  moe64_checkpoint_destroy(checkpoint);
}

// ---- refusals -----------------------------------------------------------------------------------

static void test_refusals(void) {
  moe64_checkpoint* none = NULL;
  REFUSED(moe64_checkpoint_open(path_of("nothing"), NULL, &none), MOE64_IO_FAILURE, "nothing");
  REFUSED(moe64_checkpoint_open(NULL, NULL, &none), MOE64_INVALID_ARGUMENT, "path is NULL");
  REFUSED(moe64_checkpoint_open(folder, NULL, NULL), MOE64_INVALID_ARGUMENT, "checkpoint is NULL");
  moe64_checkpoint_options options = moe64_checkpoint_options_init();
  options.lenient = 2;
  REFUSED(moe64_checkpoint_open(folder, &options, &none), MOE64_INVALID_ARGUMENT, "lenient");
  options.lenient = 0;
  options.assume_count = 1;
  REFUSED(moe64_checkpoint_open(folder, &options, &none), MOE64_INVALID_ARGUMENT, "assume is NULL");
  const char* assumed = "colour=red";
  options.assume = &assumed;
  REFUSED(moe64_checkpoint_open(folder, &options, &none), MOE64_INVALID_ARGUMENT, "colour");
  assumed = "block=128x128";
  CHECK(moe64_checkpoint_open(folder, &options, &none) == MOE64_OK);

  moe64_layer_request request = moe64_layer_request_init();
  int64_t bytes = 0;
  request.layer = 7;
  REFUSED(moe64_layer_bytes(none, &request, &bytes), MOE64_INVALID_ARGUMENT, "no layer 7");
  request.layer = 0;
  request.mtp = 9;
  REFUSED(moe64_layer_bytes(none, &request, &bytes), MOE64_INVALID_ARGUMENT, "mtp is 9");
  request.mtp = 0;
  moe64_workspace memory = lend(bytes_of(none, &request));
  memory.bytes -= 1;
  moe64_layer* layer = NULL;
  REFUSED(moe64_load_layer(none, &request, &memory, moe64_cpu_stream(NULL), NULL, NULL, &layer),
          MOE64_WORKSPACE_TOO_SMALL, "[load_layer] memory");
  CHECK(layer == NULL);
  free(memory.data);
  moe64_checkpoint_destroy(none);
}

static void test_findings(void) {
  write_checkpoint(1 * experts + 2);
  moe64_checkpoint* const broken = open_folder();
  int64_t count = 0;
  CHECK(moe64_checkpoint_finding_count(broken, &count) == MOE64_OK && count >= 1);
  int found_it = 0;
  for (int64_t i = 0; i < count; ++i) {
    moe64_checkpoint_finding finding = moe64_checkpoint_finding_init();
    CHECK(moe64_checkpoint_finding_at(broken, i, &finding) == MOE64_OK);
    if (strcmp(finding.rule, "missing-scale") == 0) {
      found_it = finding.level == MOE64_FINDING_ERROR &&
                 strstr(finding.text, "2.up_proj") != NULL &&
                 strstr(finding.tensor, "2.up_proj") != NULL;
    }
  }
  CHECK(found_it);
  moe64_checkpoint_finding finding = moe64_checkpoint_finding_init();
  REFUSED(moe64_checkpoint_finding_at(broken, count, &finding), MOE64_INVALID_ARGUMENT, "i is");
  moe64_checkpoint_layer layer = moe64_checkpoint_layer_init();
  CHECK(moe64_checkpoint_layer_at(broken, 0, &layer) == MOE64_OK);
  CHECK(layer.sound == 0 && strstr(layer.problem, "2.up_proj") != NULL && layer.loaded_bytes == 0);
  const moe64_layer_request request = moe64_layer_request_init();
  int64_t bytes = 0;
  REFUSED(moe64_layer_bytes(broken, &request, &bytes), MOE64_MISSING_SCALE, "layer 0", "2.up_proj");
  moe64_checkpoint_destroy(broken);
  write_file("model.safetensors", "\x08\0\0\0\0\0\0\0{\"a\":1  ", 16);
  moe64_checkpoint* none = NULL;
  REFUSED(moe64_checkpoint_open(folder, NULL, &none), MOE64_MALFORMED_FILE, "model.safetensors");
}

int main(void) {
  make_folder();
  test_description();
  test_loading();
  test_expert_range();
  test_refusals();
  test_findings();
  unlink(path_of("model.safetensors"));
  unlink(path_of("config.json"));
  rmdir(folder);
  return failures();
}
