add_executable(netlab_nodes launcher/netlab_nodes.c)
target_link_libraries(netlab_nodes PRIVATE weft weft_flags)
add_test(NAME netlab COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/netlab.sh
  ${CMAKE_SOURCE_DIR}/scripts/netlab $<TARGET_FILE:netlab_nodes> WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(netlab PROPERTIES TIMEOUT 120 PROCESSORS 4 RESOURCE_LOCK netlab
  SKIP_RETURN_CODE 77 LABELS "launcher;netlab")
