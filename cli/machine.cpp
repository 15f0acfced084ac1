#include "machine.hpp"

#include "cases/mapping.hpp"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <thread>
#include <unistd.h>

namespace moe64::cli {
namespace {

/// The text after the first "key :" or "key:" of a file of such lines.
std::string field(char const* path, std::string const& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    auto const colon = line.find(':');
    if (colon == std::string::npos) continue;
    auto const end = line.find_last_not_of(" \t", colon == 0 ? 0 : colon - 1);
    if (line.substr(0, end + 1) != key) continue;
    auto const begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

double kibibytes(char const* path, std::string const& key) {
  std::istringstream text(field(path, key));
  double number = 0.0;
  text >> number;
  return 1024.0 * number;
}

std::vector<std::string> known_extensions() {
  std::string flags = field("/proc/cpuinfo", "flags");            // x86
  if (flags.empty()) flags = field("/proc/cpuinfo", "Features");  // Arm
  static char const* const interesting[] = {
      "sse4_2",      "avx",      "f16c",        "fma",         "avx2",     "avx512f",
      "avx512bw",    "avx512vl", "avx512_vbmi", "avx512_vnni", "avx_vnni", "avx512_bf16",
      "avx512_fp16", "amx_tile", "amx_int8",    "amx_bf16",    "asimd",    "asimdhp",
      "asimddp",     "bf16",     "i8mm",        "sve",         "sve2"};
  std::istringstream words(flags);
  std::vector<std::string> present;
  std::string word;
  while (words >> word) present.push_back(word);
  std::vector<std::string> found;
  for (char const* name : interesting) {
    if (std::find(present.begin(), present.end(), name) != present.end()) found.emplace_back(name);
  }
  return found;
}

}  // namespace

index_t usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    return std::max(1, CPU_COUNT(&allowed));
  }
  return std::max<index_t>(1, std::thread::hardware_concurrency());
}

machine look_at_machine() {
  machine found;
  found.cpu_model = field("/proc/cpuinfo", "model name");
  if (found.cpu_model.empty()) found.cpu_model = "unknown";
  found.extensions = known_extensions();
  found.cores = usable_cores();
  found.memory_total = kibibytes("/proc/meminfo", "MemTotal");
  found.memory_available = static_cast<double>(cases::available_memory());
  return found;
}

void reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5\n";
}

double peak_memory() { return kibibytes("/proc/self/status", "VmHWM"); }

}  // namespace moe64::cli
