# The program runs once an instruction set (one that the processor lacks runs as the best it has).
weft_add_test(NAME kernels_attention CMOCKA LABELS kernels
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_attention.c ${CMAKE_CURRENT_LIST_DIR}/probe.c)
weft_add_isa_runs(attention)
weft_add_cuda_run(attention)
