# Another run of a program of kernel tests, on the first CUDA device (skipped where there is none).
function(weft_add_cuda_run name)
  weft_add_test_run(NAME kernels_${name}_cuda PROGRAM $<TARGET_FILE:test_kernels_${name}>
    LABELS kernels cuda)
  set_property(TEST kernels_${name}_cuda APPEND PROPERTY ENVIRONMENT WEFT_TEST_DEVICE=cuda)
  weft_lock_gpu(kernels_${name}_cuda)
endfunction()

# And with the instructions of other processors.
function(weft_add_isa_runs name)
  foreach(run avx2:slow baseline:nightly)
    string(REPLACE ":" ";" run ${run})
    list(POP_FRONT run isa tier)
    weft_add_test_run(NAME kernels_${name}_${isa} PROGRAM $<TARGET_FILE:test_kernels_${name}>
      TIER ${tier} LABELS kernels)
    set_property(TEST kernels_${name}_${isa} APPEND PROPERTY ENVIRONMENT WEFT_CPU_ISA=${isa})
  endforeach()
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/elementwise.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/attention.cmake OPTIONAL)

# GEMM: as this processor chooses, in both bf16 forms (skipped where there is no native one), with
# the conversions of other instruction sets, and with oneDNN as it is on a processor without bf16.
weft_add_test(NAME kernels_gemm CMOCKA LABELS kernels
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_gemm.c ${CMAKE_CURRENT_LIST_DIR}/probe.c)
set(tier release)
function(add_gemm_run name args)
  weft_add_test_run(NAME kernels_gemm_${name} PROGRAM $<TARGET_FILE:test_kernels_gemm>
    TIER ${tier} LABELS kernels later ARGS ${args})
  set_property(TEST kernels_gemm_${name} APPEND PROPERTY ENVIRONMENT ${ARGN})
endfunction()
add_gemm_run(native "" WEFT_CPU_BF16=native)
add_gemm_run(widen "" WEFT_CPU_BF16=widen)
set(tier nightly)
add_gemm_run(widen_baseline "" WEFT_CPU_BF16=widen WEFT_CPU_ISA=baseline)
set(tier release)
add_gemm_run(widen_avx2 "" WEFT_CPU_BF16=widen WEFT_CPU_ISA=avx2)
add_gemm_run(without_bf16 "" ONEDNN_MAX_CPU_ISA=AVX2)
add_gemm_run(unknown_form refused WEFT_CPU_BF16=fast)
add_gemm_run(native_refused refused WEFT_CPU_BF16=native ONEDNN_MAX_CPU_ISA=AVX2)
weft_add_cuda_run(gemm)
set(tier)
foreach(form together each) # of the groups' products, whatever their size
  add_gemm_run(cuda_${form} groups WEFT_TEST_DEVICE=cuda WEFT_CUDA_GROUPED_GEMM=${form})
  weft_lock_gpu(kernels_gemm_cuda_${form})
endforeach()

if(WEFT_CUDA STREQUAL emulated)
  add_gemm_run(cuda_without_groups groups WEFT_TEST_DEVICE=cuda WEFT_CUDA_GROUPED_GEMM=together
    WEFT_EMULATE_NO_GROUPS=1)
endif()

weft_add_test(NAME kernels_gemm_epilogue CMOCKA LABELS kernels
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_gemm_epilogue.c ${CMAKE_CURRENT_LIST_DIR}/probe.c
  LIBRARIES ${CMAKE_DL_LIBS})
weft_add_cuda_run(gemm_epilogue)

weft_add_test(NAME kernels_pace CMOCKA LABELS kernels tsan
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_pace.c)

# Also beside a CUDA device, called on the thread of its lane. Not under ThreadSanitizer, which does
# not see that OpenMP's threads wait for each other.
weft_add_test(NAME kernels_host CMOCKA LABELS kernels
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_host.c)
weft_add_cuda_run(host)
