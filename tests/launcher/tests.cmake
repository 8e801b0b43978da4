weft_add_test(NAME mesh_invariance SOURCES launcher/mesh_invariance.c RANKS 8 TIMEOUT 600
  LABELS launcher mesh)
include(${CMAKE_CURRENT_LIST_DIR}/data.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/doctor.cmake OPTIONAL)
