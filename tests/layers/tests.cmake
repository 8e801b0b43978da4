weft_add_test(NAME golden SOURCES layers/golden.c layers/harness.c LABELS layers)
weft_add_test(NAME golden_long TIER release SOURCES layers/golden_long.c layers/harness.c LABELS layers)
weft_add_test_run(NAME golden_long_4 TIER nightly PROGRAM $<TARGET_FILE:test_golden_long> RANKS 4 LABELS layers mpi)
weft_add_test(NAME precision_context TIER release SOURCES layers/precision_context.c layers/harness.c RANKS 8
  LABELS layers)
weft_add_test(NAME extremes SOURCES layers/extremes.c layers/moe_case.c layers/moe_reference.c layers/rig.c
  layers/harness.c layers/training.c RANKS 4 LABELS layers)
weft_add_test(NAME no_allocation TIER release SOURCES layers/no_allocation.c layers/training.c RANKS 2
  LABELS layers)
weft_add_test(NAME evaluation_memory TIER release SOURCES layers/evaluation_memory.c layers/training.c RANKS 4
  LABELS layers)
weft_add_test(NAME precision SOURCES layers/precision.c layers/training.c layers/harness.c
  LABELS layers)
weft_add_test(NAME text_before SOURCES layers/text_before.c layers/harness.c LABELS layers)
weft_add_test(NAME describe TIER release SOURCES layers/describe.c layers/used.c layers/rig.c layers/harness.c RANKS 4
  LABELS layers)
weft_add_test(NAME rehearse SOURCES layers/rehearse.c LABELS layers)
weft_add_test(NAME halves SOURCES layers/halves.c layers/harness.c RANKS 2 LABELS layers)
weft_add_test(NAME races TIER slow SOURCES layers/races.c layers/note_model.c LABELS layers)
weft_add_test(NAME plain SOURCES layers/plain.c LABELS layers)
weft_add_test(NAME stack CMOCKA SOURCES layers/test_stack.c LABELS layers)
weft_add_test(NAME placing SOURCES layers/placing.c LABELS layers)
weft_add_test(NAME footprint TIER slow SOURCES layers/footprint.c layers/training.c RANKS 4 LABELS layers)
weft_add_test_run(NAME footprint_all TIER nightly PROGRAM $<TARGET_FILE:test_footprint> RANKS 4 ARGS all
  LABELS layers)
# They make hundreds of groups and send next to nothing: most of their time would go into windows.
set_property(TEST describe footprint footprint_all APPEND PROPERTY ENVIRONMENT WEFT_SHARED_WINDOWS=0)
weft_add_test(NAME forced_load SOURCES layers/forced_load.c LABELS layers)
weft_add_test(NAME check_layer SOURCES layers/check_layer.c layers/harness.c RANKS 2 LABELS layers)
weft_add_test(NAME own_parts SOURCES layers/own_parts.c layers/harness.c LABELS layers)
weft_add_test_run(NAME own_parts_2 PROGRAM $<TARGET_FILE:test_own_parts> RANKS 2 LABELS layers mpi)
weft_add_test(NAME packed_documents SOURCES layers/documents.c layers/harness.c LABELS layers)
weft_add_test(NAME context SOURCES layers/context.c RANKS 4 LABELS layers)
foreach(ranks 2 8)
  weft_add_test_run(NAME context_${ranks} PROGRAM $<TARGET_FILE:test_context> RANKS ${ranks}
    LABELS layers)
endforeach()
