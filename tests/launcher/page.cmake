weft_add_test(NAME page TIER release SOURCES launcher/page.c launcher/child.c LABELS launcher)
add_test(NAME page_browser COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/page.sh
  $<TARGET_FILE:weft_binary> $<TARGET_FILE:test_page> ${CMAKE_SOURCE_DIR}/examples/clusters/h100.json
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(page_browser PROPERTIES TIMEOUT 900 PROCESSORS 2 SKIP_RETURN_CODE 77
  LABELS "launcher;tier_slow")
