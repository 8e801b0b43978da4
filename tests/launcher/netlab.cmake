add_executable(netlab_nodes launcher/netlab_nodes.c)
target_link_libraries(netlab_nodes PRIVATE weft weft_flags)
add_test(NAME netlab COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/netlab.sh
  ${CMAKE_SOURCE_DIR}/scripts/netlab $<TARGET_FILE:netlab_nodes> WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
add_test(NAME restarts_netlab COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/restarts_netlab.sh
  ${CMAKE_SOURCE_DIR}/scripts/netlab ${CMAKE_BINARY_DIR}/weft WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(restarts_netlab PROPERTIES TIMEOUT 1800 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_slow")
# How soon mpirun ends a job, and how soon it starts one, is this machine's affair.
add_test(NAME faults_netlab COMMAND bash ${CMAKE_SOURCE_DIR}/scripts/faults --quick --build ${CMAKE_BINARY_DIR}
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(faults_netlab PROPERTIES TIMEOUT 1800 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_nightly" ENVIRONMENT FAULTS_SLACK=60)
add_test(NAME nodes_netlab COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/nodes_netlab.sh
  ${CMAKE_SOURCE_DIR}/scripts/netlab ${CMAKE_BINARY_DIR}/weft WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(nodes_netlab PROPERTIES TIMEOUT 900 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_nightly")
set_tests_properties(netlab PROPERTIES TIMEOUT 900 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_slow")
add_test(NAME copies_netlab COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/copies_netlab.sh
  ${CMAKE_SOURCE_DIR}/scripts/netlab ${CMAKE_BINARY_DIR}/weft WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(copies_netlab PROPERTIES TIMEOUT 1800 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_nightly")
add_test(NAME mpijob COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/mpijob_netlab.sh
  ${CMAKE_SOURCE_DIR}/scripts/netlab ${CMAKE_BINARY_DIR}/weft WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(mpijob PROPERTIES TIMEOUT 1800 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_nightly")
add_test(NAME slurm COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/slurm.sh
  ${CMAKE_SOURCE_DIR}/scripts/slurmlab ${CMAKE_BINARY_DIR}/weft $<TARGET_FILE:weft_faulty> WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(slurm PROPERTIES TIMEOUT 2400 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_nightly")
add_test(NAME slurm_sites COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/slurm_sites.sh
  ${CMAKE_SOURCE_DIR}/scripts/slurmlab ${CMAKE_BINARY_DIR}/weft $<TARGET_FILE:weft_faulty> WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(slurm_sites PROPERTIES TIMEOUT 900 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_nightly")
add_test(NAME night COMMAND bash ${CMAKE_SOURCE_DIR}/scripts/night --runs 2 --build ${CMAKE_BINARY_DIR}
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(night PROPERTIES TIMEOUT 1800 COST 100 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab;tier_nightly")
