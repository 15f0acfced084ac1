# Mixed-input: W8A16, W8A16 by transposed weights, W4A16 (cmake/instances.cmake; the tiles are in tile.cuh).

foreach(element bf16 f16)
  set(kernel "kernel<sm90_mixed_parameters> mixed_kernel_of<${element}_register_operand, ")
  foreach(weights w8 w8t w4)
    moe64_instance(gemm/sm90/mixed/${weights}_${element}_small_m gemm/sm90/mixed/kernel.cuh "${kernel}${weights}_m32n128>()"
                   "${kernel}${weights}_m64n128>()")
    moe64_instance(gemm/sm90/mixed/${weights}_${element}_m288n128 gemm/sm90/mixed/kernel.cuh "${kernel}${weights}_m288n128>()")
  endforeach()
  moe64_instance(gemm/sm90/mixed/w8_${element}_m160n128 gemm/sm90/mixed/kernel.cuh "${kernel}w8_m160n128>()")
endforeach()
