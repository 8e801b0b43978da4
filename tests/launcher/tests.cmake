weft_add_test(NAME mesh_invariance SOURCES launcher/mesh_invariance.c RANKS 8 TIMEOUT 600
  LABELS launcher mesh)
weft_add_test(NAME resume SOURCES launcher/resume.c launcher/weights.c RANKS 4 TIMEOUT 300
  LABELS launcher)
weft_add_test(NAME killed SOURCES launcher/killed.c launcher/child.c TIMEOUT 300 LABELS launcher)
add_dependencies(test_killed weft_binary)
weft_add_test(NAME nonfinite SOURCES launcher/nonfinite.c launcher/child.c LABELS launcher)
set_tests_properties(killed nonfinite PROPERTIES PROCESSORS 2)
weft_add_test(NAME wrong_configs SOURCES launcher/wrong_configs.c launcher/child.c LABELS launcher)
weft_add_test(NAME end_to_end SOURCES launcher/end_to_end.c launcher/child.c LABELS launcher)
set_tests_properties(end_to_end PROPERTIES PROCESSORS 4)
weft_add_test(NAME damaged SOURCES launcher/damaged.c launcher/child.c LABELS launcher)
include(${CMAKE_CURRENT_LIST_DIR}/data.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/doctor.cmake OPTIONAL)
