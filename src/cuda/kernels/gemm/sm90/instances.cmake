# W8A8 and bf16 / f16, a file for each kernel of large_m and for both of swap_ab (cmake/instances.cmake).

foreach(elements e4m3 bf16 f16)
  set(list bf16) # of tile_config.hpp
  if(elements STREQUAL "e4m3")
    set(list w8a8)
  endif()
  set(kernel "kernel<sm90_gemm_parameters> swap_ab_kernel<swap_ab_tile<${elements}_elements, ${list}")
  moe64_instance(gemm/sm90/swap_ab/${elements} gemm/sm90/swap_ab/kernel.cuh "${kernel}_m32n128>>()" "${kernel}_m64n128>>()")
  set(kernel "kernel<sm90_gemm_parameters> large_m_kernel<large_m_tile<${elements}_elements, ${list}")
  moe64_instance(gemm/sm90/large_m/${elements}_m256n128 gemm/sm90/large_m/kernel.cuh "${kernel}_m256n128>>()")
endforeach()

foreach(tile m192n128 m192n128_tma_store m128n192)
  moe64_instance(gemm/sm90/large_m/e4m3_${tile} gemm/sm90/large_m/kernel.cuh
                 "kernel<sm90_gemm_parameters> large_m_kernel<large_m_tile<e4m3_elements, w8a8_${tile}>>()")
endforeach()
