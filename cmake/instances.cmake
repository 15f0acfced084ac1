# Kernels that are templates are instantiated in files of their own, so that they compile in parallel. These files are
# generated from the lists instances.cmake in the folders of src/cuda/kernels/ that have some:
#
#   moe64_instance(gemm/sm90/swap_ab/bf16 gemm/sm90/swap_ab/kernel.cuh
#                  "kernel<sm90_gemm_parameters> swap_ab_kernel<swap_ab_tile<bf16_elements, bf16_m32n128>>()")
#
# makes the file <build>/kernels/gemm/sm90/swap_ab/bf16.cu, which includes that header and instantiates explicitly what
# follows: functions that return a kernel, declared where they are called (without a body, or each caller would compile
# the kernel as well) and defined in the header.

# moe64_instance(file header instantiation...)
function(moe64_instance file header)
  string(PREPEND header "cuda/kernels/")
  set(instantiations "")
  foreach(instantiation IN LISTS ARGN)
    string(APPEND instantiations "template ${instantiation};\n")
  endforeach()
  set(source "${PROJECT_BINARY_DIR}/kernels/${file}.cu")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/instance.cu.in" "${source}" @ONLY)
  set_property(GLOBAL APPEND PROPERTY MOE64_INSTANCES "${source}")
endfunction()

# moe64_instances(out): the files that all lists make.
function(moe64_instances out)
  file(GLOB_RECURSE lists CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/cuda/kernels/instances.cmake")
  foreach(list IN LISTS lists)
    include("${list}")
  endforeach()
  get_property(sources GLOBAL PROPERTY MOE64_INSTANCES)
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
