// moe64_cuda_fault KIND: makes one mistake on purpose. `bounds`, `uninitialised` and `race` are for
// compute-sanitizer, which must report them; `nowhere` shows that the error of a kernel that failed
// is reported by its name, by the next call and by every one after it.
#include "cuda/runtime/launch.hpp"
#include "cuda_fault/kernels.hpp"
#include "moe64/cuda.hpp"

#include <cstdio>
#include <string>

namespace {

using namespace moe64;

constexpr int skipped = 77;
constexpr index_t elements = 256;

void launch(cuda::kernel<test::fault_parameters> const& kernel, bool filled) {
  device const where = device::cuda(0);
  cuda_queue const queue(where);
  cuda_buffer const data(elements * 4, where);
  cuda_buffer const sink(elements * 4, where);
  if (filled) cuda_fill(data.memory().data, 0, elements * 4, queue.get());
  {
    cuda::launcher on("fault", dequantize_args{}, queue.get());
    on.launch(
        kernel, {1, 256},
        {static_cast<int*>(data.memory().data), elements, static_cast<int*>(sink.memory().data)});
  }
  cuda_wait(queue.get());
}

/// Whether `call` reports the error of the kernel, and not something else.
template <class Call>
bool reports_illegal_address(char const* what, Call const& call) {
  try {
    call();
  } catch (error const& e) {
    std::printf("%s: %s\n", what, e.what());
    return e.code() == errc::device_failure &&
           std::string(e.what()).find("cudaErrorIllegalAddress") != std::string::npos;
  }
  std::printf("%s: no error\n", what);
  return false;
}

int run(std::string const& kind) {
  if (kind == "bounds") {
    launch(test::writes_out_of_bounds(), true);
  } else if (kind == "uninitialised") {
    launch(test::reads_what_nobody_wrote(), false);
  } else if (kind == "race") {
    launch(test::races(), true);
  } else if (kind == "nowhere") {
    bool const first =
        reports_illegal_address("the wait", [] { launch(test::writes_nowhere(), true); });
    bool const second = reports_illegal_address(
        "the next call", [] { cuda_buffer const memory(64, device::cuda(0)); });
    return first && second ? 0 : 1;
  } else {
    std::puts("moe64_cuda_fault bounds | uninitialised | race | nowhere");
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (support const answer = cuda_support(); !answer) {
    std::printf("skipped: %s\n", answer.reason().c_str());
    return skipped;
  }
  return run(argc == 2 ? argv[1] : "");
}
