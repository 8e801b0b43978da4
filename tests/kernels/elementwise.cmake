# Every kernel that computes beside the GEMMs and attention; each program runs once an instruction
# set (one that the processor lacks runs as the best it has).
foreach(name norm heads activation loss elementwise random routing dispatch optimizer)
  weft_add_test(NAME kernels_${name} CMOCKA LABELS kernels
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/test_${name}.c ${CMAKE_CURRENT_LIST_DIR}/probe.c)
  foreach(isa baseline avx2)
    weft_add_test_run(NAME kernels_${name}_${isa} PROGRAM $<TARGET_FILE:test_kernels_${name}>
      TIER release LABELS kernels)
    set_property(TEST kernels_${name}_${isa} APPEND PROPERTY ENVIRONMENT WEFT_CPU_ISA=${isa})
  endforeach()
  weft_add_cuda_run(${name})
endforeach()
