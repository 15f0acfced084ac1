// What a binding asks the library about its structs, and a layer about what it was made of.
#include "check.h"

static int64_t size_of(const char* name) {
  int64_t bytes = -1;
  CHECK(moe64_struct_bytes(name, &bytes) == MOE64_OK);
  return bytes;
}

static void sizes_are_those_of_the_headers(void) {
  CHECK(moe64_abi_version() == MOE64_ABI_VERSION);
  CHECK(size_of("moe64_device") == (int64_t)sizeof(moe64_device));
  CHECK(size_of("moe64_tensor") == (int64_t)sizeof(moe64_tensor));
  CHECK(size_of("moe64_quantized") == (int64_t)sizeof(moe64_quantized));
  CHECK(size_of("moe64_layer_desc") == (int64_t)sizeof(moe64_layer_desc));
  CHECK(size_of("moe64_layer_view") == (int64_t)sizeof(moe64_layer_view));
  CHECK(size_of("moe64_checkpoint_layer") == (int64_t)sizeof(moe64_checkpoint_layer));
}

static void what_is_no_struct_is_refused(void) {
  int64_t bytes = 77;
  CHECK(moe64_struct_bytes("moe64_nothing", &bytes) == MOE64_INVALID_ARGUMENT);
  CHECK(strstr(moe64_last_error(), "moe64_nothing") != NULL);
  CHECK(moe64_struct_bytes("moe64_tenso", &bytes) == MOE64_INVALID_ARGUMENT);
  CHECK(moe64_struct_bytes(NULL, &bytes) == MOE64_INVALID_ARGUMENT);
  CHECK(bytes == 77);
  CHECK(moe64_struct_bytes("moe64_tensor", NULL) == MOE64_INVALID_ARGUMENT);
}

enum { experts = 2, inter = 3, hidden = 5 };

static int same(const moe64_tensor* left, const moe64_tensor* right) {
  return memcmp(left, right, sizeof *left) == 0;
}

static void a_layer_says_what_it_looks_at(void) {
  static uint8_t codes[2][experts][inter][hidden];
  static float scales[2][experts][inter], down_values[experts][hidden][inter];
  static float bias[2][experts][inter];
  moe64_quantized parts[2];
  for (int part = 0; part < 2; ++part) {
    parts[part] =
        scaled(tensor3(codes[part], MOE64_DTYPE_E4M3, experts, inter, hidden),
               tensor3(scales[part], MOE64_DTYPE_F32, experts, inter, 1), MOE64_SCALE_ROW, 0, 0);
  }
  const moe64_quantized down = plain(tensor3(down_values, MOE64_DTYPE_F32, experts, hidden, inter));
  moe64_weights *gate_up_stack = NULL, *down_stack = NULL;
  REQUIRE(moe64_weights_gate_up(&parts[0], &parts[1], &gate_up_stack) == MOE64_OK);
  REQUIRE(moe64_weights_single(&down, &down_stack) == MOE64_OK);

  moe64_layer_desc desc = moe64_layer_desc_init();
  desc.gate_up.weights = gate_up_stack;
  desc.gate_up.bias[0] = tensor2(bias[0], MOE64_DTYPE_F32, experts, inter);
  desc.gate_up.bias[1] = tensor2(bias[1], MOE64_DTYPE_F32, experts, inter);
  desc.down.weights = down_stack;
  desc.activation.kind = MOE64_CLAMPED_SILU_GLU;
  desc.activation.limit = 2.5F;
  desc.scheme = MOE64_SCHEME_DYNAMIC;
  desc.weight_on = MOE64_WEIGHT_ON_INPUT;
  desc.experts_total = 9;
  desc.first_expert = 4;
  moe64_layer* layer = NULL;
  REQUIRE(moe64_layer_create(&desc, &layer) == MOE64_OK);
  moe64_weights_destroy(gate_up_stack);
  moe64_weights_destroy(down_stack);

  moe64_layer_view view = moe64_layer_view_init();
  REQUIRE(moe64_layer_look(layer, &view) == MOE64_OK);
  for (int part = 0; part < 2; ++part) {
    CHECK(same(&view.gate_up.parts[part].values, &parts[part].values));
    CHECK(same(&view.gate_up.parts[part].scales, &parts[part].scales));
    CHECK(view.gate_up.parts[part].layout.kind == MOE64_SCALE_ROW);
    CHECK(same(&view.gate_up.bias[part], &desc.gate_up.bias[part]));
  }
  CHECK(same(&view.down.parts[0].values, &down.values));
  CHECK(view.down.parts[0].layout.kind == MOE64_SCALE_NONE);
  CHECK(view.down.parts[0].scales.rank == 0 && view.down.parts[1].values.rank == 0);
  CHECK(view.down.bias[0].rank == 0);
  CHECK(view.activation.kind == MOE64_CLAMPED_SILU_GLU && view.activation.limit == 2.5F);
  CHECK(view.scheme == MOE64_SCHEME_DYNAMIC && view.weight_on == MOE64_WEIGHT_ON_INPUT);
  CHECK(view.mode == MOE64_MODE_AUTOMATIC && view.experts_total == 9 && view.first_expert == 4);

  // A caller that knows less of the struct gets so much of it.
  memset(&view, 0x5a, sizeof view);
  view.struct_size = offsetof(moe64_layer_view, down);
  CHECK(moe64_layer_look(layer, &view) == MOE64_OK);
  CHECK(same(&view.gate_up.bias[1], &desc.gate_up.bias[1]));
  CHECK(view.down.parts[0].values.rank == 0x5a);

  CHECK(moe64_layer_look(NULL, &view) == MOE64_INVALID_ARGUMENT);
  CHECK(moe64_layer_look(layer, NULL) == MOE64_INVALID_ARGUMENT);
  view.struct_size = 3;
  CHECK(moe64_layer_look(layer, &view) == MOE64_INVALID_ARGUMENT);
  moe64_layer_destroy(layer);
}

int main(void) {
  sizes_are_those_of_the_headers();
  what_is_no_struct_is_refused();
  a_layer_says_what_it_looks_at();
  return failures();
}
