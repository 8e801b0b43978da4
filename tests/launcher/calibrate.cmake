weft_add_test(NAME calibrate TIER slow SOURCES launcher/test_calibrate.c launcher/child.c CMOCKA
  LABELS launcher)
weft_add_test(NAME own_operations SOURCES launcher/own_operations.c LABELS launcher)
weft_add_test(NAME import SOURCES launcher/test_import.c launcher/child.c CMOCKA LABELS launcher)
weft_add_test(NAME calibrate_ranks TIER slow SOURCES launcher/calibrate.c RANKS 4 LABELS launcher mpi)
weft_add_test_run(NAME calibrate_cuda PROGRAM $<TARGET_FILE:test_calibrate_ranks> RANKS 2 TIER release
  LABELS launcher cuda mpi)
set_property(TEST calibrate_cuda APPEND PROPERTY ENVIRONMENT WEFT_TEST_DEVICE=cuda)
weft_lock_gpu(calibrate_cuda)
weft_add_test_run(NAME calibrate_odd_ranks TIER slow PROGRAM $<TARGET_FILE:test_calibrate_ranks> RANKS 3
  LABELS launcher mpi)
