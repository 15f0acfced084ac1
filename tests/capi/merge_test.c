// An adapter merged into a checkpoint through the C ABI: one matrix of four numbers.
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <math.h>
#include <unistd.h>

#define REFUSED(call, status, ...)                                     \
  do {                                                                 \
    CHECK((call) == (status));                                         \
    static const char* const parts[] = {__VA_ARGS__};                  \
    for (size_t part = 0; part < sizeof parts / sizeof *parts; ++part) \
      CHECK(strstr(moe64_last_error(), parts[part]) != NULL);          \
  } while (0)

static char folder[256];

static const char* path_of(const char* name) {
  static char paths[4][512];
  static int next = 0;
  char* const path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static void write_file(const char* name, const void* bytes, size_t count) {
  FILE* file = fopen(path_of(name), "wb");
  REQUIRE(file != NULL);
  REQUIRE(fwrite(bytes, 1, count, file) == count);
  REQUIRE(fclose(file) == 0);
}

/// A safetensors file of f32: the header names the tensors.
static void write_tensors(const char* name, const char* header, const float* data, size_t count) {
  char bytes[2048];
  const uint64_t length = strlen(header);
  memcpy(bytes, &length, 8);
  memcpy(bytes + 8, header, length);
  memcpy(bytes + 8 + length, data, count * sizeof(float));
  write_file(name, bytes, 8 + length + count * sizeof(float));
}

static void write_files(float first) {
  static const char config[] =
      "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2, \"moe_intermediate_size\": 2, "
      "\"num_experts\": 1, \"num_experts_per_tok\": 1, \"num_hidden_layers\": 1, "
      "\"hidden_act\": \"silu\"}";
  static const char adapter[] = "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 2}";
  const float weights[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4};
  const float factors[] = {first, 1, 3, 0.5F};
  write_file("config.json", config, sizeof config - 1);
  write_file("adapter_config.json", adapter, sizeof adapter - 1);
  static char header[1024] = "{";
  static const char* const names[] = {"mlp.experts.0.gate_proj", "mlp.experts.0.up_proj",
                                      "mlp.experts.0.down_proj", "self_attn.q_proj"};
  size_t end = 1;
  for (int i = 0; i < 4; ++i) {
    const int added = snprintf(header + end, sizeof header - end,
                               "%s\"model.layers.0.%s.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],"
                               "\"data_offsets\":[%d,%d]}",
                               i == 0 ? "" : ",", names[i], 16 * i, 16 * i + 16);
    end += (size_t)added;
  }
  header[end] = '}';
  header[end + 1] = '\0';
  write_tensors("model.safetensors", header, weights, 16);
  write_tensors("adapter_model.safetensors",
                "{\"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight\":{\"dtype\":"
                "\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                "\"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight\":{\"dtype\":"
                "\"F32\",\"shape\":[2,1],\"data_offsets\":[8,16]}}",
                factors, 4);
}

static int stop(void* user_data, int64_t done, int64_t total) {
  (void)done;
  (void)total;
  return *(int*)user_data;
}

static void test_merge(const moe64_checkpoint* base) {
  moe64_adapter_fit fit = moe64_adapter_fit_init();
  REQUIRE(moe64_check_adapter(base, folder, MOE64_ADAPTER_AS_STATED, &fit) == MOE64_OK);
  CHECK(fit.pairs == 1 && fit.modules == 1 && fit.bytes > 16);
  moe64_merge_options options = moe64_merge_options_init();
  options.to = MOE64_MERGE_SAME;
  moe64_merge_report* report = NULL;
  int answer = 0;
  REQUIRE(moe64_merge(base, folder, path_of("out"), &options, moe64_cpu_stream(NULL), stop, &answer,
                      &report) == MOE64_OK);
  moe64_merge_summary summary = moe64_merge_summary_init();
  REQUIRE(moe64_merge_summarize(report, &summary) == MOE64_OK);
  CHECK(summary.pairs == 1 && summary.merged == 1 && summary.warnings == 0);
  CHECK(summary.anomalies == 0 && summary.shards == 1);
  moe64_merged_tensor tensor = moe64_merged_tensor_init();
  REQUIRE(moe64_merged_tensor_at(report, 0, &tensor) == MOE64_OK);
  CHECK(strcmp(tensor.tensor, "model.layers.0.self_attn.q_proj.weight") == 0);
  CHECK(tensor.survives == 1 && tensor.kept > 0.999 && tensor.kept < 1.001);
  const char* text = NULL;
  REFUSED(moe64_merged_tensor_at(report, 1, &tensor), MOE64_INVALID_ARGUMENT, "i is 1");
  REFUSED(moe64_merge_text_at(report, MOE64_FINDING_WARNING, 0, &text), MOE64_INVALID_ARGUMENT,
          "i is 0");
  REFUSED(moe64_merge_text_at(report, 9, 0, &text), MOE64_INVALID_ARGUMENT, "level is 9");
  moe64_merge_report_destroy(report);
  float written[4] = {0};
  FILE* file = fopen(path_of("out/model.safetensors"), "rb");
  REQUIRE(file != NULL);
  REQUIRE(fseek(file, -16, SEEK_END) == 0);
  REQUIRE(fread(written, sizeof(float), 4, file) == 4);
  fclose(file);
  // 2 * [3, 0.5]^T [2, 1] on [1 2; 3 4]
  CHECK(written[0] == 13 && written[1] == 8 && written[2] == 5 && written[3] == 5);
}

static void test_refusals(const moe64_checkpoint* base) {
  moe64_merge_options options = moe64_merge_options_init();
  moe64_merge_report* report = NULL;
  const moe64_stream cpu = moe64_cpu_stream(NULL);
  REFUSED(moe64_merge(NULL, folder, "x", &options, cpu, NULL, NULL, &report),
          MOE64_INVALID_ARGUMENT, "base");
  REFUSED(moe64_merge(base, NULL, "x", &options, cpu, NULL, NULL, &report), MOE64_INVALID_ARGUMENT,
          "adapter");
  REFUSED(moe64_merge(base, folder, NULL, &options, cpu, NULL, NULL, &report),
          MOE64_INVALID_ARGUMENT, "out");
  REFUSED(moe64_merge(base, folder, "x", NULL, cpu, NULL, NULL, &report), MOE64_INVALID_ARGUMENT,
          "options");
  options.to = 1;  // f16 of convert
  REFUSED(moe64_merge(base, folder, "x", &options, cpu, NULL, NULL, &report),
          MOE64_INVALID_ARGUMENT, "to is 1");
  options.to = MOE64_MERGE_BF16;
  options.layout = 3;
  REFUSED(moe64_merge(base, folder, "x", &options, cpu, NULL, NULL, &report),
          MOE64_INVALID_ARGUMENT, "layout is 3");
  options.layout = MOE64_ADAPTER_AS_STATED;
  int answer = 1;
  REFUSED(moe64_merge(base, folder, path_of("stopped"), &options, cpu, stop, &answer, &report),
          MOE64_INTERRUPTED, "[merge]");
  write_files(NAN);
  moe64_adapter_fit fit = moe64_adapter_fit_init();
  REFUSED(moe64_check_adapter(base, folder, MOE64_ADAPTER_AS_STATED, &fit), MOE64_INVALID_ARGUMENT,
          "lora_A", "not finite");
  REFUSED(moe64_check_adapter(base, folder, 7, &fit), MOE64_INVALID_ARGUMENT, "layout is 7");
  CHECK(report == NULL && fit.pairs == 0);
  moe64_merge_report_destroy(NULL);
}

int main(void) {
  snprintf(folder, sizeof folder, "%s/moe64_capi_merge_XXXXXX",
           getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
  REQUIRE(mkdtemp(folder) != NULL);
  write_files(2);
  moe64_checkpoint* base = NULL;
  REQUIRE(moe64_checkpoint_open(folder, NULL, &base) == MOE64_OK);
  test_merge(base);
  test_refusals(base);
  moe64_checkpoint_destroy(base);
  char command[512];
  snprintf(command, sizeof command, "rm -r '%s'", folder);
  CHECK(system(command) == 0);
  return failures();
}
