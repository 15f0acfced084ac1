#include "cuda_fault/kernels.hpp"

namespace moe64::test {
namespace {

__global__ void write_out_of_bounds(fault_parameters const p) {
  if (threadIdx.x == 0) p.data[p.elements] = 1;
}

__global__ void read_what_nobody_wrote(fault_parameters const p) {
  int sum = 0;
  for (index_t i = threadIdx.x; i < p.elements; i += blockDim.x) sum += p.data[i];
  p.sink[threadIdx.x] = sum;
}

__global__ void race(fault_parameters const p) {
  __shared__ int numbers[256];
  numbers[threadIdx.x] = p.data[threadIdx.x];
  p.sink[threadIdx.x] = numbers[(threadIdx.x + 32) % 256];
}

__global__ void write_nowhere(fault_parameters const p) {
  p.data[(index_t{1} << 45) + threadIdx.x] = 1;
}

}  // namespace

cuda::kernel<fault_parameters> writes_out_of_bounds() {
  return {"write_out_of_bounds", write_out_of_bounds};
}
cuda::kernel<fault_parameters> reads_what_nobody_wrote() {
  return {"read_what_nobody_wrote", read_what_nobody_wrote};
}
cuda::kernel<fault_parameters> races() { return {"race", race}; }
cuda::kernel<fault_parameters> writes_nowhere() { return {"write_nowhere", write_nowhere}; }

}  // namespace moe64::test
