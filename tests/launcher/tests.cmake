weft_add_test(NAME mesh_invariance SOURCES launcher/mesh_invariance.c RANKS 8 TIMEOUT 600
  LABELS launcher mesh)
weft_add_test(NAME resume SOURCES launcher/resume.c launcher/weights.c RANKS 4 TIMEOUT 300
  LABELS launcher)
weft_add_test(NAME killed SOURCES launcher/killed.c launcher/child.c TIMEOUT 300 LABELS launcher)
add_dependencies(test_killed weft_binary)
weft_add_test(NAME nonfinite SOURCES launcher/nonfinite.c launcher/child.c LABELS launcher)
set_tests_properties(killed nonfinite PROPERTIES PROCESSORS 2)
weft_add_test(NAME wrong_configs SOURCES launcher/wrong_configs.c launcher/child.c LABELS launcher)
weft_add_test(NAME stacks SOURCES launcher/stacks.c launcher/child.c LABELS launcher)
set_tests_properties(stacks PROPERTIES PROCESSORS 2)
weft_add_test(NAME end_to_end SOURCES launcher/end_to_end.c launcher/child.c LABELS launcher)
weft_add_test(NAME evaluation SOURCES launcher/evaluation.c launcher/child.c LABELS launcher)
set_tests_properties(end_to_end evaluation PROPERTIES PROCESSORS 4)
weft_add_test(NAME terminal SOURCES launcher/terminal.c launcher/child.c LABELS launcher)
set_tests_properties(terminal PROPERTIES PROCESSORS 2)
weft_add_test(NAME damaged SOURCES launcher/damaged.c launcher/child.c LABELS launcher)
include(${CMAKE_CURRENT_LIST_DIR}/data.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/doctor.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/netlab.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/calibrate.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake OPTIONAL)
weft_add_test(NAME bench SOURCES launcher/test_bench.c launcher/child.c CMOCKA LABELS launcher)
add_dependencies(test_bench weft_binary)
weft_add_test(NAME bench_all_to_all SOURCES launcher/bench_all_to_all.c launcher/child.c RANKS 4
  LABELS launcher mpi)
weft_add_test_run(NAME bench_all_to_all_uneven PROGRAM $<TARGET_FILE:test_bench_all_to_all> RANKS 4
  ARGS uneven LABELS launcher mpi)
weft_add_test(NAME bench_moe_layer SOURCES launcher/bench_moe_layer.c launcher/child.c RANKS 4
  LABELS launcher mpi)
weft_add_test_run(NAME bench_moe_layer_memory PROGRAM $<TARGET_FILE:test_bench_moe_layer> RANKS 4
  ARGS memory LABELS launcher mpi)
weft_add_test(NAME moe_choice SOURCES launcher/moe_choice.c RANKS 2 LABELS launcher mpi)
weft_add_test(NAME application CMOCKA SOURCES launcher/test_application.c LABELS launcher)
