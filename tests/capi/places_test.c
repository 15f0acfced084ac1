// Experts that were allocated one by one, through the C ABI.
#include "check.h"

enum { experts = 3, out = 2, in = 4, rows = 3 };

#define REFUSED(call, status, text)                    \
  do {                                                 \
    CHECK((call) == (status));                         \
    CHECK(strstr(moe64_last_error(), (text)) != NULL); \
  } while (0)

/// Matrices anywhere in here; between them is what must not be used.
static float memory[512];
static const float* const matrices[experts] = {memory + 300, memory + 4, memory + 104};
static const void* const pointers[experts] = {memory + 300, memory + 4, memory + 104};

static float weight(int expert, int row, int col) {
  return (float)(1 + expert * 100 + row * 10 + col);
}

static void fill(void) {
  for (size_t i = 0; i < sizeof memory / sizeof *memory; ++i) memory[i] = 1e30F;
  for (int e = 0; e < experts; ++e) {
    for (int i = 0; i < out * in; ++i) {
      memory[matrices[e] - memory + i] = weight(e, i / in, i % in);
    }
  }
}

static void pointers_become_a_stack(int64_t* table, moe64_tensor* stack) {
  const moe64_tensor each = tensor2(memory, MOE64_DTYPE_F32, out, in);
  REQUIRE(moe64_place_matrices(pointers, experts, &each, 4, table, stack) == MOE64_OK);
  CHECK(stack->data == memory + 4 && stack->rank == 3 && stack->dtype == MOE64_DTYPE_F32);
  CHECK(stack->extent[0] == 75 && stack->extent[1] == out && stack->extent[2] == in);
  CHECK(stack->stride[0] == 4 && stack->stride[1] == in && stack->stride[2] == 1);
  CHECK(table[0] == 74 && table[1] == 0 && table[2] == 25);

  int64_t other[experts] = {-5, -5, -5};
  moe64_tensor unused;
  REFUSED(moe64_place_matrices(pointers, experts, &each, 16, other, &unused),
          MOE64_INVALID_ARGUMENT, "[place_matrices] matrix 0");
  REFUSED(moe64_place_matrices(pointers, -1, &each, 4, other, &unused), MOE64_INVALID_ARGUMENT,
          "count is -1");
  REFUSED(moe64_place_matrices(NULL, experts, &each, 4, other, &unused), MOE64_INVALID_ARGUMENT,
          "matrices is NULL");
  REFUSED(moe64_place_matrices(pointers, experts, NULL, 4, other, &unused), MOE64_INVALID_ARGUMENT,
          "like is NULL");
  REFUSED(moe64_place_matrices(pointers, experts, &each, 4, NULL, &unused), MOE64_INVALID_ARGUMENT,
          "table is NULL");
  REFUSED(moe64_place_matrices(pointers, experts, &each, 4, other, NULL), MOE64_INVALID_ARGUMENT,
          "stack is NULL");
  CHECK(other[0] == -5 && other[1] == -5 && other[2] == -5);
}

/// y of rows of ones, the first of expert 0 and two of expert 2; of `parts` equal parts.
static void multiply(const moe64_weights* weights, int parts) {
  static const int64_t begin[experts + 1] = {0, 1, 1, 3};
  float x[rows][in], y[rows][2 * out];
  for (int i = 0; i < rows * in; ++i) x[i / in][i % in] = 1.0F;
  moe64_grouped_gemm_args args = moe64_grouped_gemm_args_init();
  args.x = plain(tensor2(x, MOE64_DTYPE_F32, rows, in));
  args.weights = weights;
  args.expert_begin = tensor1(begin, MOE64_DTYPE_INT64, experts + 1);
  args.y = tensor2(y, MOE64_DTYPE_F32, rows, parts * out);
  const float* const values = &y[0][0];
  REQUIRE(moe64_grouped_gemm(&args, moe64_cpu_stream(NULL)) == MOE64_OK);
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < parts * out; ++n) {
      const float want = 4 * weight(r == 0 ? 0 : 2, n % out, 0) + 6;
      CHECK(values[r * parts * out + n] == want);
    }
  }
}

static void weights_at_places_are_multiplied(int64_t* table, moe64_tensor stack) {
  const moe64_quantized matrix = plain(stack);
  moe64_expert_places places;
  memset(&places, 0, sizeof places);
  places.values = tensor1(table, MOE64_DTYPE_INT64, experts);
  moe64_weights *single = NULL, *both = NULL;
  REQUIRE(moe64_weights_single_placed(&matrix, &places, &single) == MOE64_OK);
  multiply(single, 1);
  REQUIRE(moe64_weights_gate_up_placed(&matrix, &places, &matrix, &places, &both) == MOE64_OK);
  multiply(both, 2);

  moe64_layer_desc desc = moe64_layer_desc_init();
  desc.gate_up.weights = both;
  desc.down.weights = single;
  moe64_layer* layer = NULL;
  REQUIRE(moe64_layer_create(&desc, &layer) == MOE64_OK);
  moe64_layer_view view = moe64_layer_view_init();
  REFUSED(moe64_layer_look(layer, &view), MOE64_UNSUPPORTED, "gate_up has its experts at places");
  moe64_layer_destroy(layer);
  moe64_weights_destroy(both);
  moe64_weights_destroy(single);

  moe64_weights* none = NULL;
  REFUSED(moe64_weights_single_placed(NULL, &places, &none), MOE64_INVALID_ARGUMENT,
          "matrix is NULL");
  REFUSED(moe64_weights_single_placed(&matrix, NULL, &none), MOE64_INVALID_ARGUMENT,
          "places is NULL");
  REFUSED(moe64_weights_single_placed(&matrix, &places, NULL), MOE64_INVALID_ARGUMENT,
          "weights is NULL");
  REFUSED(moe64_weights_gate_up_placed(&matrix, &places, &matrix, NULL, &none),
          MOE64_INVALID_ARGUMENT, "up_places is NULL");
  places.values.dtype = MOE64_DTYPE_F32;
  REFUSED(moe64_weights_single_placed(&matrix, &places, &none), MOE64_DTYPE_MISMATCH, "places [3]");
  CHECK(none == NULL);
}

int main(void) {
  int64_t table[experts];
  moe64_tensor stack;
  int64_t bytes = 0;
  CHECK(moe64_struct_bytes("moe64_expert_places", &bytes) == MOE64_OK);
  CHECK(bytes == (int64_t)sizeof(moe64_expert_places));
  fill();
  pointers_become_a_stack(table, &stack);
  weights_at_places_are_multiplied(table, stack);
  return failures();
}
