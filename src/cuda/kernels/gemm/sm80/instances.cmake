# The mixed-input and plain GEMMs by mma.sync (cmake/instances.cmake; the tiles are in tile_config.hpp). A large tile takes the
# compiler a minute: a file for each type of x.

function(moe64_sm80_instances file)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "X;PLAIN;CODES;ELEMENT_SCALED")
  set(kernels "")
  foreach(x IN LISTS arg_X)
    foreach(tile IN LISTS arg_PLAIN)
      list(APPEND kernels "${x}_pair, mma_tile::${tile}, mma_weights::plain")
    endforeach()
    foreach(tile IN LISTS arg_CODES)
      list(APPEND kernels "${x}_pair, mma_tile::${tile}, mma_weights::vec16_scaled"
                          "${x}_pair, mma_tile::${tile}, mma_weights::vec16_scaled_e4m3")
    endforeach()
    foreach(tile IN LISTS arg_ELEMENT_SCALED)
      list(APPEND kernels "${x}_pair, mma_tile::${tile}, mma_weights::element_scaled")
    endforeach()
  endforeach()
  list(TRANSFORM kernels REPLACE "^.+$" "kernel<sm80_gemm_parameters> mma_kernel<\\0>(bool)")
  moe64_instance(gemm/sm80/${file} gemm/sm80/kernel.cuh ${kernels})
endfunction()

moe64_sm80_instances(m16n128 X bf16 f16 PLAIN m16n128 CODES m16n128)
moe64_sm80_instances(m32n128 X bf16 f16 ELEMENT_SCALED m32n128)
moe64_sm80_instances(m128n64 X bf16 f16 PLAIN m128n64)
foreach(x bf16 f16)
  moe64_sm80_instances(m64n128_${x} X ${x} PLAIN m64n128 CODES m64n128)
  moe64_sm80_instances(m256n128_${x} X ${x} PLAIN m128n256 CODES m256n128)
endforeach()
