# Every kernel that computes beside the GEMMs and attention; each program runs once an instruction
# set (one that the processor lacks runs as the best it has).
foreach(name norm heads activation loss elementwise random routing dispatch optimizer)
  weft_add_test(NAME kernels_${name} CMOCKA LABELS kernels
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c ${CMAKE_CURRENT_LIST_DIR}/probe.c)
  weft_add_isa_runs(${name})
  weft_add_cuda_run(${name})
endforeach()
