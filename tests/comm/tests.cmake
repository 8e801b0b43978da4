# One program of conformance for every number of ranks; a rank alone is the self backend, which never
# starts MPI.
foreach(suite collectives groups messages check)
  weft_add_test(NAME comm_${suite} SOURCES comm/test_${suite}.c LABELS comm tsan)
  foreach(ranks 2 3 4 8)
    weft_add_test_run(NAME comm_${suite}_${ranks} PROGRAM $<TARGET_FILE:test_comm_${suite}>
      RANKS ${ranks} LABELS comm)
  endforeach()
endforeach()
foreach(ranks 2 3)
  weft_add_test_run(NAME comm_collectives_pieces_${ranks}
    PROGRAM $<TARGET_FILE:test_comm_collectives> RANKS ${ranks} LABELS comm ARGS pieces)
endforeach()
# Control groups whose ranks are two or three a node, in an order of their own.
foreach(ranks 3 4 8)
  weft_add_test_run(NAME comm_collectives_nodes_${ranks}
    PROGRAM $<TARGET_FILE:test_comm_collectives> RANKS ${ranks} LABELS comm ARGS nodes)
endforeach()
weft_add_test_run(NAME comm_collectives_nodes_pieces_4
  PROGRAM $<TARGET_FILE:test_comm_collectives> RANKS 4 LABELS comm ARGS nodes pieces)
weft_add_test(NAME comm_nodes SOURCES comm/test_nodes.c LABELS comm)
foreach(ranks 2 7)
  weft_add_test_run(NAME comm_nodes_${ranks} PROGRAM $<TARGET_FILE:test_comm_nodes>
    RANKS ${ranks} LABELS comm)
endforeach()
weft_add_test(NAME comm_sharded SOURCES comm/test_sharded.c LABELS comm tsan)
foreach(ranks 2 4 6 8)
  weft_add_test_run(NAME comm_sharded_${ranks} PROGRAM $<TARGET_FILE:test_comm_sharded>
    RANKS ${ranks} LABELS comm)
  weft_add_test_run(NAME comm_sharded_mismatches_${ranks}
    PROGRAM $<TARGET_FILE:test_comm_sharded> RANKS ${ranks} LABELS comm ARGS mismatches)
  set_tests_properties(comm_sharded_mismatches_${ranks} PROPERTIES
    PASS_REGULAR_EXPRESSION "every mismatch was found")
endforeach()
foreach(ranks 2 3 4 8)
  weft_add_test_run(NAME comm_collectives_window_${ranks}
    PROGRAM $<TARGET_FILE:test_comm_collectives> RANKS ${ranks} LABELS comm ARGS window)
  weft_add_test_run(NAME comm_collectives_messages_${ranks}
    PROGRAM $<TARGET_FILE:test_comm_collectives> RANKS ${ranks} LABELS comm ARGS messages)
endforeach()
foreach(ranks 2 3)
  weft_add_test_run(NAME comm_collectives_window_pieces_${ranks}
    PROGRAM $<TARGET_FILE:test_comm_collectives> RANKS ${ranks} LABELS comm ARGS window pieces)
endforeach()
weft_add_test(NAME comm_shared SOURCES comm/test_shared.c LABELS comm tsan)
foreach(ranks 2 3 4 8)
  weft_add_test_run(NAME comm_shared_${ranks} PROGRAM $<TARGET_FILE:test_comm_shared>
    RANKS ${ranks} LABELS comm)
endforeach()
weft_add_test_run(NAME comm_shared_off PROGRAM $<TARGET_FILE:test_comm_shared> RANKS 4 LABELS comm
  ARGS off)
weft_add_test_run(NAME comm_shared_disagree PROGRAM $<TARGET_FILE:test_comm_shared> RANKS 2
  LABELS comm ARGS disagree)
weft_add_test(NAME comm_fold SOURCES comm/test_fold.c CMOCKA LABELS comm)
weft_add_test(NAME comm_world_size SOURCES comm/test_world_size.c RANKS 2 LABELS comm)
weft_add_test(NAME comm_launched SOURCES comm/test_launched.c CMOCKA LABELS comm)
weft_add_test(NAME comm_stress TIER release SOURCES comm/test_stress.c RANKS 8 LABELS comm)
# No MPI inside: clean under ThreadSanitizer.
weft_add_test(NAME comm_engine SOURCES comm/test_engine.c CMOCKA LABELS comm tsan)
weft_add_test(NAME comm_gate SOURCES comm/test_gate.c CMOCKA LABELS comm tsan)
weft_add_test(NAME comm_match SOURCES comm/test_match.c LABELS comm)
foreach(ranks 2 3 8)
  weft_add_test_run(NAME comm_match_${ranks} PROGRAM $<TARGET_FILE:test_comm_match> RANKS ${ranks}
    LABELS comm)
endforeach()
weft_add_test(NAME comm_watch_judge SOURCES comm/test_watch_judge.c LABELS comm)
weft_add_test(NAME comm_backend SOURCES comm/test_backend.c LABELS comm)
weft_add_test_run(NAME comm_backend_2 PROGRAM $<TARGET_FILE:test_comm_backend> RANKS 2 LABELS comm)
# The same programs with operands in the memory of a GPU that all ranks share.
function(weft_add_comm_cuda_run name suite ranks)
  weft_add_test_run(NAME comm_${name}_cuda_${ranks} PROGRAM $<TARGET_FILE:test_comm_${suite}>
    RANKS ${ranks} LABELS comm cuda ARGS ${ARGN})
  set_property(TEST comm_${name}_cuda_${ranks} APPEND PROPERTY ENVIRONMENT WEFT_TEST_DEVICE=cuda
    WEFT_EMULATE_PINNING_WAITS=1)
  weft_lock_gpu(comm_${name}_cuda_${ranks})
endfunction()
foreach(suite backend collectives messages sharded)
  foreach(ranks 1 2 4)
    weft_add_comm_cuda_run(${suite} ${suite} ${ranks})
  endforeach()
endforeach()
weft_add_comm_cuda_run(collectives_window collectives 3 window)
weft_add_comm_cuda_run(collectives_messages collectives 3 messages)
weft_add_comm_cuda_run(sharded_mismatches sharded 4 mismatches)
set_tests_properties(comm_sharded_mismatches_cuda_4 PROPERTIES
  PASS_REGULAR_EXPRESSION "every mismatch was found" SKIP_REGULAR_EXPRESSION "no CUDA device")
# And with a GPU for each rank. Two ranks: sums of more have other bits than a fold in rank order.
function(weft_add_comm_nccl_run suite ranks)
  weft_add_test_run(NAME comm_${suite}_nccl_${ranks} PROGRAM $<TARGET_FILE:test_comm_${suite}>
    RANKS ${ranks} LABELS comm cuda)
  set_property(TEST comm_${suite}_nccl_${ranks} APPEND PROPERTY ENVIRONMENT WEFT_TEST_DEVICE=nccl)
  weft_lock_gpu(comm_${suite}_nccl_${ranks})
endfunction()
weft_add_comm_nccl_run(collectives 2)
weft_add_comm_nccl_run(messages 2)
weft_add_comm_nccl_run(messages 4)
weft_add_comm_nccl_run(sharded 2)
weft_add_comm_nccl_run(sharded 4)
