# The program runs once an instruction set (one that the processor lacks runs as the best it has).
weft_add_test(NAME kernels_attention CMOCKA LABELS kernels
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_attention.c ${CMAKE_CURRENT_LIST_DIR}/probe.c)
if(WEFT_CUDA STREQUAL emulated)
  target_compile_definitions(test_kernels_attention PRIVATE WEFT_CUDA_EMULATED)
endif()
foreach(isa baseline avx2)
  weft_add_test_run(NAME kernels_attention_${isa} PROGRAM $<TARGET_FILE:test_kernels_attention>
    TIER release LABELS kernels)
  set_property(TEST kernels_attention_${isa} APPEND PROPERTY ENVIRONMENT WEFT_CPU_ISA=${isa})
endforeach()
weft_add_cuda_run(attention)
