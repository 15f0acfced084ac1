// CUDA through the C ABI. Without a device: what it says, and that nothing else is tried.
#include "check.h"

static moe64_tensor on_device(moe64_tensor tensor, void* data) {
  tensor.data = data;
  tensor.device = moe64_cuda_device(0);
  return tensor;
}

static void test_refusals(void) {
  int64_t devices = -1;
  char reason[16] = "";
  CHECK(moe64_cuda_devices(NULL, reason, sizeof reason) == MOE64_INVALID_ARGUMENT);
  CHECK(moe64_cuda_devices(&devices, NULL, 5) == MOE64_INVALID_ARGUMENT);
  CHECK(moe64_cuda_devices(&devices, NULL, 0) == MOE64_OK);
  CHECK(devices >= 0);
  char here = 0;
  CHECK(moe64_cuda_copy(&here, NULL, 1, moe64_cuda_stream(0, NULL)) == MOE64_INVALID_ARGUMENT);
  CHECK(moe64_cuda_copy(&here, &here, -1, moe64_cuda_stream(0, NULL)) == MOE64_INVALID_ARGUMENT);
  moe64_stream cpu;
  memset(&cpu, 0, sizeof cpu);
  CHECK(moe64_cuda_wait(cpu) == MOE64_DEVICE_MISMATCH);
  CHECK(strcmp(moe64_status_name(MOE64_DEVICE_FAILURE), "device_failure") == 0);
  moe64_cuda_buffer_destroy(NULL);
}

static void test_without_a_device(void) {
  int64_t devices = -1;
  char reason[512] = "";
  CHECK(moe64_cuda_devices(&devices, reason, sizeof reason) == MOE64_OK);
  CHECK(reason[0] != '\0');
  printf("CUDA is off: %s\n", reason);
  char cut[4] = "";
  CHECK(moe64_cuda_devices(&devices, cut, sizeof cut) == MOE64_OK);
  CHECK(strncmp(cut, reason, 3) == 0 && cut[3] == '\0');

  int64_t bytes = 0;
  CHECK(moe64_plan_scratch_bytes(3, 2, 4, moe64_cuda_device(0), &bytes) == MOE64_UNSUPPORTED);
  CHECK(strstr(moe64_last_error(), "cuda:0") != NULL);
  moe64_cuda_buffer* buffer = NULL;
  moe64_workspace memory;
  CHECK(moe64_cuda_buffer_create(64, moe64_cuda_device(0), &buffer, &memory) != MOE64_OK);
  CHECK(buffer == NULL);
}

/// Codes of 1, -2, 3, 0 with scale 0.5, dequantised on the device.
static void test_dequantize(void) {
  const uint8_t codes[4] = {e4m3(1), e4m3(-2), e4m3(3), e4m3(0)};
  const float scale = 0.5F;
  float out[4] = {9, 9, 9, 9};
  const moe64_stream stream = moe64_cuda_stream(0, NULL);
  moe64_cuda_buffer* buffer = NULL;
  moe64_workspace memory;
  REQUIRE(moe64_cuda_buffer_create(4096, moe64_cuda_device(0), &buffer, &memory) == MOE64_OK);
  CHECK(memory.bytes == 4096 && memory.data != NULL);
  char* const base = memory.data;
  REQUIRE(moe64_cuda_copy(base, codes, sizeof codes, stream) == MOE64_OK);
  REQUIRE(moe64_cuda_copy(base + 256, &scale, sizeof scale, stream) == MOE64_OK);

  moe64_dequantize_args args = moe64_dequantize_args_init();
  args.q = scaled(on_device(tensor2(codes, MOE64_DTYPE_E4M3, 1, 4), base),
                  on_device(tensor2(&scale, MOE64_DTYPE_F32, 1, 1), base + 256), MOE64_SCALE_TENSOR,
                  0, 0);
  args.out = on_device(tensor2(out, MOE64_DTYPE_F32, 1, 4), base + 512);
  REQUIRE(moe64_dequantize(&args, stream) == MOE64_OK);
  REQUIRE(moe64_cuda_copy(out, base + 512, sizeof out, stream) == MOE64_OK);
  REQUIRE(moe64_cuda_wait(stream) == MOE64_OK);
  CHECK(out[0] == 0.5F && out[1] == -1.0F && out[2] == 1.5F && out[3] == 0.0F);

  args.out.data = out;  // still says that it is on the device
  CHECK(moe64_dequantize(&args, stream) == MOE64_DEVICE_MISMATCH);
  CHECK(strstr(moe64_last_error(), "out") != NULL);
  CHECK(strstr(moe64_last_error(), "host memory") != NULL);
  moe64_cuda_buffer_destroy(buffer);
}

int main(void) {
  test_refusals();
  int64_t devices = 0;
  REQUIRE(moe64_cuda_devices(&devices, NULL, 0) == MOE64_OK);
  if (devices == 0) {
    test_without_a_device();
  } else {
    test_dequantize();
  }
  return failures();
}
