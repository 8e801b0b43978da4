# Training on a CUDA device: skipped where there is none. Ranks share one.
weft_add_test(NAME cuda_training SOURCES launcher/cuda_training.c ARGS dense LABELS launcher cuda)
foreach(run moe muon bf16 fp16 overflow graphs)
  weft_add_test_run(NAME cuda_training_${run} PROGRAM $<TARGET_FILE:test_cuda_training> ARGS ${run}
    TIER release LABELS launcher cuda)
  list(APPEND cuda_training cuda_training_${run})
endforeach()
foreach(run "dense tp=2,dp=2,sp=1,zero=1" "dense pp=2,dp=2,zero=3" "moe dp=4,binding=dp,ep=4"
    "moe tp=2,pp=2,binding=tp" "graphs pp=2,dp=2" "fp16 dp=4,zero=2" "overflow dp=4,zero=3")
  string(REPLACE " " ";" args ${run})
  string(REGEX REPLACE "[ =,]+" "_" name ${run})
  set(tier release)
  if(run MATCHES "graphs|fp16")
    set(tier)
  endif()
  weft_add_test_run(NAME cuda_training_${name} PROGRAM $<TARGET_FILE:test_cuda_training> RANKS 4
    TIER ${tier} ARGS ${args} LABELS launcher cuda mpi)
  list(APPEND cuda_training cuda_training_${name})
endforeach()
# MoE layers whose parts overlap, and tensor-sharded experts' all-to-all.
function(add_moe name mesh parallel)
  weft_add_test_run(NAME cuda_training_moe_${name} PROGRAM $<TARGET_FILE:test_cuda_training> RANKS 4
    TIER ${tier} ARGS moe ${mesh} "${parallel}" LABELS launcher cuda mpi)
  list(APPEND cuda_training cuda_training_moe_${name})
  set(cuda_training ${cuda_training} PARENT_SCOPE)
endfunction()
set(tier release)
add_moe(s1 dp=4,binding=dp,ep=4 "\"moe_num_partitions\": 3, \"moe_memory_reuse\": \"s1\"")
add_moe(s4 dp=4,binding=dp,ep=4 "\"moe_num_partitions\": 2, \"moe_memory_reuse\": \"s4\"")
set(tier)
add_moe(o3 tp=2,binding=dp,ep=2,etp=2 "\"moe_all_to_all\": \"o3\", \"moe_all_to_all_chunks\": 2")
set(tier release)
add_moe(direct tp=2,binding=dp,ep=2,etp=2
  "\"moe_all_to_all\": \"direct\", \"moe_num_partitions\": 2")
weft_add_test(NAME cuda_meshes SOURCES launcher/cuda_meshes.c launcher/meshes.c launcher/planned.c
  RANKS 4 TIER release LABELS launcher cuda mpi)
weft_add_test_run(NAME cuda_tier_slow PROGRAM $<TARGET_FILE:test_tier_slow> RANKS 2 TIER release
  ARGS device.kind=cuda LABELS launcher cuda mpi)
list(APPEND cuda_training cuda_meshes cuda_tier_slow)
weft_lock_gpu(cuda_training ${cuda_training})
# Emulated, pinning memory waits for all streams, as it may on a GPU.
set_property(TEST cuda_training ${cuda_training} APPEND PROPERTY ENVIRONMENT
  WEFT_EMULATE_PINNING_WAITS=1)
set(nvml)
if(WEFT_CUDA STREQUAL emulated) # the stand-in for NVML has its GPU
  set(nvml $<TARGET_FILE:fake_nvml>)
endif()
weft_add_test(NAME cuda_command TIER release SOURCES launcher/cuda_command.c launcher/child.c ARGS ${nvml}
  LABELS launcher cuda)
add_dependencies(test_cuda_command fake_nvml)
weft_lock_gpu(cuda_command)
