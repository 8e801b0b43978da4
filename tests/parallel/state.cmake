weft_add_test(NAME lr_schedule SOURCES parallel/test_lr_schedule.c CMOCKA LABELS parallel pure)
weft_add_test(NAME loss_scale SOURCES parallel/test_loss_scale.c CMOCKA LABELS parallel pure)
weft_add_test(NAME parameters SOURCES parallel/test_parameters.c LABELS parallel)
weft_add_test_run(NAME parameters_4 PROGRAM $<TARGET_FILE:test_parameters> RANKS 4
  LABELS parallel mpi)
weft_add_test(NAME optimizer SOURCES parallel/test_optimizer.c LABELS parallel)
foreach(ranks 2 4 8)
  weft_add_test_run(NAME optimizer_${ranks} PROGRAM $<TARGET_FILE:test_optimizer> RANKS ${ranks}
    LABELS parallel mpi)
endforeach()
weft_add_test(NAME checkpoint SOURCES parallel/test_checkpoint.c LABELS parallel)
foreach(ranks 2 4 8)
  weft_add_test_run(NAME checkpoint_${ranks} PROGRAM $<TARGET_FILE:test_checkpoint> RANKS ${ranks}
    LABELS parallel mpi)
endforeach()
weft_add_test(NAME checkpoint_faults SOURCES parallel/test_checkpoint_faults.c LABELS parallel)
weft_add_test(NAME checkpoint_folder SOURCES parallel/test_checkpoint_folder.c LABELS parallel)
weft_add_test(NAME checkpoint_weights SOURCES parallel/test_checkpoint_weights.c LABELS parallel)
weft_add_test(NAME checkpoint_raw SOURCES parallel/test_checkpoint_raw.c LABELS parallel)
target_link_libraries(test_checkpoint_raw PRIVATE PkgConfig::XXHASH)
weft_add_test(NAME checkpoint_keep SOURCES parallel/test_checkpoint_keep.c LABELS parallel)
weft_add_test(NAME checkpoint_async TIER slow SOURCES parallel/test_checkpoint_async.c LABELS parallel)
weft_add_test(NAME checkpoint_copies SOURCES parallel/test_checkpoint_copies.c RANKS 4
  TIMEOUT 300 LABELS parallel mpi)
