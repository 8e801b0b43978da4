# Programs that run the command, and need nothing else.
foreach(name near_names dry_run end_to_end evaluation model_travels chats)
  weft_add_test(NAME ${name} SOURCES launcher/${name}.c launcher/child.c LABELS launcher)
endforeach()
foreach(name optimizer_limits plan_plain tier_plan plan_layers expand schedule plan_figures
    inspect_sample compare peak bench_experts slips report)
  weft_add_test(NAME ${name} TIER release SOURCES launcher/${name}.c launcher/child.c LABELS launcher)
endforeach()
foreach(name tier_generate stopping against stacks expert_tokens blend terminal run_folder stragglers generating)
  weft_add_test(NAME ${name} TIER slow SOURCES launcher/${name}.c launcher/child.c LABELS launcher)
endforeach()
weft_add_test(NAME mesh_invariance TIER slow SOURCES launcher/mesh_invariance.c launcher/meshes.c
  launcher/planned.c launcher/weights.c RANKS 8 LABELS launcher mesh)
weft_add_test_run(NAME mesh_invariance_long TIER nightly PROGRAM $<TARGET_FILE:test_mesh_invariance> RANKS 8 ARGS 20
  LABELS launcher mesh)
weft_add_test(NAME mesh_draws SOURCES launcher/mesh_draws.c launcher/meshes.c
  launcher/planned.c RANKS 4 LABELS launcher later mesh)
weft_add_test(NAME recompute TIER slow SOURCES launcher/recompute.c launcher/same_bits.c
  launcher/meshes.c launcher/planned.c RANKS 4 LABELS launcher mesh)
weft_add_test(NAME pairs TIER slow SOURCES launcher/pairs.c launcher/same_bits.c
  launcher/meshes.c launcher/planned.c RANKS 4 LABELS launcher mesh)
weft_add_test(NAME offload TIER slow SOURCES launcher/offload.c launcher/same_bits.c
  launcher/meshes.c launcher/planned.c RANKS 4 LABELS launcher mesh)
weft_add_test(NAME tier TIER slow SOURCES launcher/tier.c launcher/meshes.c launcher/planned.c
  launcher/weights.c RANKS 4 LABELS launcher mesh)
weft_add_test_run(NAME tier_in_file TIER nightly PROGRAM $<TARGET_FILE:test_tier> RANKS 4 ARGS file
  LABELS launcher mesh)
weft_add_test(NAME optimizer_state TIER slow SOURCES launcher/optimizer_state.c launcher/meshes.c
  launcher/planned.c launcher/weights.c RANKS 4 LABELS launcher mesh)
weft_add_test(NAME tier_placed TIER slow SOURCES launcher/tier_placed.c launcher/meshes.c launcher/planned.c
  launcher/weights.c RANKS 4 LABELS launcher mesh)
weft_add_test_run(NAME tier_placed_nodes TIER nightly PROGRAM $<TARGET_FILE:test_tier_placed> RANKS 4 ARGS nodes
  LABELS launcher mesh)
weft_add_test(NAME tier_file TIER slow SOURCES launcher/tier_file.c LABELS launcher)
weft_add_test(NAME tier_hard TIER release SOURCES launcher/tier_hard.c launcher/weights.c RANKS 4
  LABELS launcher mesh)
weft_add_test_run(NAME tier_hard_file TIER nightly PROGRAM $<TARGET_FILE:test_tier_hard> RANKS 4 ARGS file
  LABELS launcher mesh)
weft_add_test(NAME tier_limits TIER nightly SOURCES launcher/tier_limits.c launcher/child.c
  LABELS launcher)
weft_add_test(NAME tier_lanes SOURCES launcher/tier_lanes.c LABELS launcher tsan)
target_link_options(test_tier_lanes PRIVATE -Wl,--wrap=weft_grouped_gemm)
weft_add_test(NAME tier_slow TIER nightly SOURCES launcher/tier_slow.c launcher/meshes.c launcher/planned.c
  launcher/weights.c RANKS 2 LABELS launcher mesh)
target_link_options(test_tier_slow PRIVATE -Wl,--wrap=weft_lane_submit,--wrap=weft_lane_copy)
weft_add_test(NAME lane_delays TIER nightly SOURCES launcher/lane_delays.c launcher/meshes.c launcher/planned.c
  RANKS 4 LABELS launcher mesh)
target_link_options(test_lane_delays PRIVATE -Wl,--wrap=weft_lane_submit)
weft_add_test(NAME tier_draws TIER nightly SOURCES launcher/tier_draws.c launcher/meshes.c launcher/planned.c
  launcher/weights.c RANKS 4 LABELS launcher mesh)
weft_add_test(NAME sharding TIER release SOURCES launcher/sharding.c launcher/meshes.c
  launcher/planned.c RANKS 4 LABELS launcher mesh)
weft_add_test(NAME tp_overlap TIER slow SOURCES launcher/tp_overlap.c launcher/meshes.c launcher/planned.c RANKS 4
  LABELS launcher mesh)
weft_add_test(NAME packed TIER release SOURCES launcher/packed.c launcher/meshes.c launcher/planned.c RANKS 4
  LABELS launcher mesh)
weft_add_test(NAME resume SOURCES launcher/resume.c launcher/meshes.c launcher/planned.c launcher/weights.c RANKS 4
  LABELS launcher)
weft_add_test(NAME ramp SOURCES launcher/ramp.c launcher/meshes.c launcher/planned.c RANKS 4
  LABELS launcher mesh)
weft_add_test(NAME objectives SOURCES launcher/objectives.c launcher/meshes.c launcher/planned.c
  RANKS 4 LABELS launcher mesh)
weft_add_test(NAME position TIER release SOURCES launcher/position.c LABELS launcher)
add_executable(weft_crashing launcher/crashing.c)
target_link_libraries(weft_crashing PRIVATE weft weft_flags)
target_link_options(weft_crashing PRIVATE -Wl,--wrap=weft_all_reduce,--wrap=weft_trainer_step,--wrap=weft_trainer_create)
weft_add_test(NAME restarts TIER slow SOURCES launcher/restarts.c launcher/child.c
  ARGS $<TARGET_FILE:weft_crashing> LABELS launcher)
add_dependencies(test_restarts weft_crashing)
add_executable(weft_faulty launcher/faulty.c)
target_link_libraries(weft_faulty PRIVATE weft weft_flags)
target_link_options(weft_faulty PRIVATE -Wl,--wrap=weft_all_reduce,--wrap=weft_reduce_scatter
  -Wl,--wrap=weft_all_gather,--wrap=weft_all_to_all,--wrap=weft_broadcast,--wrap=weft_send
  -Wl,--wrap=weft_recv,--wrap=weft_comm_all_reduce_host,--wrap=weft_comm_all_gather_host
  -Wl,--wrap=weft_comm_gather_host,--wrap=weft_comm_broadcast_host
  -Wl,--wrap=weft_checkpoint_save,--wrap=weft_flight_claim)
weft_add_test(NAME watchdog TIER slow SOURCES launcher/watchdog.c launcher/child.c
  ARGS $<TARGET_FILE:weft_faulty> LABELS launcher)
add_dependencies(test_watchdog weft_faulty)
weft_add_test(NAME skipped TIER slow SOURCES launcher/skipped.c launcher/child.c
  ARGS $<TARGET_FILE:weft_faulty> LABELS launcher)
weft_add_test_run(NAME skipped_all PROGRAM $<TARGET_FILE:test_skipped> TIER nightly
  ARGS $<TARGET_FILE:weft_faulty> all LABELS launcher)
add_dependencies(test_skipped weft_faulty)
weft_add_test(NAME bad_steps TIER slow SOURCES launcher/bad_steps.c launcher/child.c LABELS launcher)
target_link_options(test_bad_steps PRIVATE -Wl,--wrap=weft_optimizer_update)
weft_add_test(NAME wrong_configs SOURCES launcher/wrong_configs.c launcher/child.c LABELS launcher later)
set_tests_properties(dry_run PROPERTIES PROCESSORS 4)
add_test(NAME exports COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/exports.sh $<TARGET_FILE:weft_binary>)
set_tests_properties(exports PROPERTIES LABELS launcher SKIP_RETURN_CODE 77)
add_test(NAME transformers_reads COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/transformers_reads.sh $<TARGET_FILE:weft_binary>
  ${CMAKE_SOURCE_DIR}/tests/oracle/read_exports.py)
set_tests_properties(transformers_reads PROPERTIES LABELS "launcher;tier_nightly" SKIP_RETURN_CODE 77)
add_test(NAME torch_reads COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/torch_reads.sh $<TARGET_FILE:weft_binary>
  ${CMAKE_CURRENT_LIST_DIR}/../oracle/read_schedules.py)
set_tests_properties(torch_reads PROPERTIES LABELS "launcher;tier_nightly" SKIP_RETURN_CODE 77)
weft_add_test(NAME plan TIER release SOURCES launcher/plan.c launcher/child.c LABELS launcher later)
add_dependencies(test_plan_layers weft_plan)
weft_add_test(NAME search TIER slow SOURCES launcher/search.c launcher/problems.c launcher/child.c
  ARGS 40 LABELS launcher)
weft_add_test_run(NAME search_all PROGRAM $<TARGET_FILE:test_search> TIER nightly
  ARGS 200 LABELS launcher)
weft_add_test(NAME what_if TIER slow SOURCES launcher/what_if.c launcher/problems.c launcher/child.c
  LABELS launcher)
set_tests_properties(expand PROPERTIES PROCESSORS 2)
add_dependencies(test_expand weft_plan)
weft_add_test(NAME launching TIER release SOURCES launcher/launching.c launcher/jobs.c launcher/child.c
  LABELS launcher)
add_dependencies(test_launching weft_plan)
add_library(fake_lustre MODULE launcher/fake_lustre.c)
target_compile_definitions(fake_lustre PRIVATE _GNU_SOURCE)
weft_add_test(NAME launching_sites TIER slow SOURCES launcher/launching_sites.c launcher/jobs.c
  launcher/child.c ARGS $<TARGET_FILE:fake_lustre> LABELS launcher)
add_dependencies(test_launching_sites fake_lustre)
weft_add_test(NAME launching_faults TIER slow SOURCES launcher/launching_faults.c launcher/jobs.c
  launcher/child.c LABELS launcher)
weft_add_test(NAME launching_ends TIER slow SOURCES launcher/launching_ends.c launcher/jobs.c
  launcher/child.c LABELS launcher)
weft_add_test(NAME cards SOURCES launcher/cards.c LABELS launcher)
add_dependencies(test_plan weft_plan)
add_dependencies(test_schedule weft_plan)
set_tests_properties(stacks PROPERTIES PROCESSORS 2)
set_tests_properties(plan_figures PROPERTIES PROCESSORS 2)
set_tests_properties(end_to_end evaluation PROPERTIES PROCESSORS 4)
set_tests_properties(peak PROPERTIES PROCESSORS 2)
weft_add_test(NAME damaged SOURCES launcher/damaged.c launcher/child.c LABELS launcher later)
weft_add_test(NAME async_saves TIER slow SOURCES launcher/async_saves.c launcher/child.c
  LABELS launcher)
weft_add_test_run(NAME async_saves_faults TIER nightly PROGRAM $<TARGET_FILE:test_async_saves> ARGS faults
  LABELS launcher)
weft_add_test(NAME fallback TIER slow SOURCES launcher/fallback.c launcher/child.c LABELS launcher)
set_tests_properties(fallback PROPERTIES PROCESSORS 2)
weft_add_test(NAME torture TIER slow SOURCES launcher/torture.c launcher/torture_draw.c
  launcher/torture_life.c launcher/torture_damage.c launcher/torture_judge.c
  launcher/torture_compare.c launcher/child.c ARGS --kills 16 --seed 7 --steps 40
  LABELS launcher)
weft_add_test_run(NAME torture_more TIER nightly PROGRAM $<TARGET_FILE:test_torture> ARGS --kills 100
  LABELS launcher)
weft_add_test_run(NAME torture_finds TIER nightly PROGRAM $<TARGET_FILE:test_torture> ARGS finds
  LABELS launcher)
target_link_options(test_stragglers PRIVATE -Wl,--wrap=weft_pace_end,--wrap=gethostname
  -Wl,--wrap=weft_comm_send_host,--wrap=weft_links_look)
weft_add_test(NAME nodes TIER nightly SOURCES launcher/nodes.c launcher/child.c LABELS launcher)
target_link_options(test_nodes PRIVATE -Wl,--wrap=weft_gemm,--wrap=weft_lane_copy)
add_library(fake_nvml MODULE launcher/fake_nvml.c)
weft_add_test(NAME ledger TIER slow SOURCES launcher/ledger.c launcher/child.c ARGS $<TARGET_FILE:fake_nvml>
  $<TARGET_FILE:weft_crashing> LABELS launcher)
add_dependencies(test_ledger fake_nvml weft_crashing)
set_tests_properties(ledger PROPERTIES PROCESSORS 2)
include(${CMAKE_CURRENT_LIST_DIR}/data.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/doctor.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/netlab.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/calibrate.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/scale.cmake OPTIONAL)
include(${CMAKE_CURRENT_LIST_DIR}/page.cmake OPTIONAL)
weft_add_test(NAME bench TIER release SOURCES launcher/test_bench.c launcher/child.c CMOCKA LABELS launcher)
weft_add_test(NAME bench_all_to_all TIER release SOURCES launcher/bench_all_to_all.c launcher/child.c RANKS 4
  LABELS launcher mpi)
weft_add_test_run(NAME bench_all_to_all_uneven TIER nightly PROGRAM $<TARGET_FILE:test_bench_all_to_all> RANKS 4
  ARGS uneven LABELS launcher mpi)
weft_add_test(NAME bench_moe_layer TIER nightly SOURCES launcher/bench_moe_layer.c launcher/child.c RANKS 4
  LABELS launcher mpi)
weft_add_test_run(NAME bench_moe_layer_memory TIER nightly PROGRAM $<TARGET_FILE:test_bench_moe_layer> RANKS 4
  ARGS memory LABELS launcher mpi)
set_tests_properties(bench_experts PROPERTIES PROCESSORS 2)
weft_add_test(NAME moe_choice SOURCES launcher/moe_choice.c RANKS 2 LABELS launcher mpi)
weft_add_test(NAME context_price SOURCES launcher/context_price.c LABELS launcher)
weft_add_test(NAME context_choice SOURCES launcher/context_choice.c RANKS 4 LABELS launcher mpi)
weft_add_test(NAME step_clock CMOCKA SOURCES launcher/test_step_clock.c LABELS launcher tsan)
weft_add_test(NAME application CMOCKA SOURCES launcher/test_application.c LABELS launcher)
# Tests that mostly wait, for limits and for ranks that start: two at a time, first and beside what
# computes; netlab's are a third.
set_tests_properties(async_saves_faults torture_finds launching_ends stopping bad_steps terminal
  PROPERTIES COST 100 RESOURCE_LOCK waits)
set_tests_properties(restarts watchdog skipped skipped_all launching_faults tier_limits nodes torture torture_more stragglers async_saves run_folder
  PROPERTIES COST 100 RESOURCE_LOCK waits_too)
# Three or four jobs of ranks at once, side by side.
set_tests_properties(restarts watchdog PROPERTIES PROCESSORS 2)
set_tests_properties(search what_if PROPERTIES COST 50)
weft_add_test(NAME models TIER slow SOURCES launcher/models.c launcher/child.c launcher/weights.c layers/harness.c
  LABELS launcher)
weft_add_test_run(NAME models_meshes TIER nightly PROGRAM $<TARGET_FILE:test_models> ARGS meshes LABELS launcher)
add_dependencies(test_models example_phi3)
weft_add_test_run(NAME generating_all TIER nightly PROGRAM $<TARGET_FILE:test_generating> ARGS all LABELS launcher)
weft_add_test(NAME model_faults SOURCES launcher/model_faults.c launcher/altered.c launcher/child.c
  LABELS launcher)
weft_add_test(NAME model_scales SOURCES launcher/model_scales.c launcher/altered.c launcher/child.c
  LABELS launcher)
weft_add_test(NAME model_map SOURCES launcher/model_map.c LABELS launcher)
weft_add_test(NAME races_steps TIER slow SOURCES launcher/races_steps.c launcher/note_trainer.c
  layers/note_model.c LABELS launcher)
target_link_options(test_races_steps PRIVATE -Wl,--wrap=weft_device_create_cpu
  -Wl,--wrap=weft_topology_discover,--wrap=weft_groups_create,--wrap=weft_step_programs
  -Wl,--wrap=weft_comm_send_host,--wrap=weft_tier_positions)
