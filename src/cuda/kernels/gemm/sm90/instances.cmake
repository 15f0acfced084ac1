# W8A8 and bf16 / f16 (cmake/instances.cmake).

foreach(elements e4m3 bf16 f16)
  set(kernel "kernel<sm90_gemm_parameters> swap_ab_kernel<${elements}_elements, tile_shape")
  moe64_instance(gemm/sm90/swap_ab/${elements} gemm/sm90/swap_ab/kernel.cuh "${kernel}::m32n128>()" "${kernel}::m64n128>()")
  set(kernel "kernel<sm90_gemm_parameters> large_m_kernel<${elements}_elements, tile_shape")
  moe64_instance(gemm/sm90/large_m/${elements}_m256n128 gemm/sm90/large_m/kernel.cuh "${kernel}::m256n128>()")
endforeach()

foreach(tile m192n128 m192n128_tma_store)
  moe64_instance(gemm/sm90/large_m/e4m3_${tile} gemm/sm90/large_m/kernel.cuh
                 "kernel<sm90_gemm_parameters> large_m_kernel<e4m3_elements, tile_shape::${tile}>()")
endforeach()
moe64_instance(gemm/sm90/large_m/e4m3_m128n192 gemm/sm90/large_m/m128n192.cuh
               "kernel<sm90_gemm_parameters> large_m_kernel<e4m3_elements, tile_shape::m128n192>()")
