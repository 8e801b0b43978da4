# The README's program: its one C block with a main, compiled as it stands.
set(readme ${CMAKE_SOURCE_DIR}/README.md)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${readme})
set(sample ${CMAKE_CURRENT_BINARY_DIR}/readme_sample.c)
file(READ ${readme} text)
string(REGEX MATCH "```c\n(#include <weft/weft.h>[^`]*)```" found "${text}")
if(NOT found)
  message(FATAL_ERROR "README.md: no C block that begins with #include <weft/weft.h>")
endif()
file(CONFIGURE OUTPUT ${sample} CONTENT "${CMAKE_MATCH_1}" @ONLY)
add_executable(readme_sample ${sample})
target_link_libraries(readme_sample PRIVATE weft weft_flags)

# The own layer, which says less than it keeps.
set(sample ${CMAKE_CURRENT_BINARY_DIR}/small_layer.c)
file(READ ${CMAKE_SOURCE_DIR}/examples/own_layer.c text)
string(REGEX REPLACE "weft_cost_stash[^;]*\"w1\"[^;]*;" "" found "${text}")
file(CONFIGURE OUTPUT ${sample} CONTENT "${found}" @ONLY)
add_executable(small_layer ${sample})
target_link_libraries(small_layer PRIVATE weft weft_flags)

# And one that declares a metric which every line has.
set(sample ${CMAKE_CURRENT_BINARY_DIR}/named_layer.c)
string(REPLACE "    primer *p = (primer *)layer;\n    weft_parameter_spec w1"
  "    weft_metric *m;\n    WEFT_TRY(weft_build_metric(build, \"loss\", WEFT_METRIC_MEAN, &m));\n\
    primer *p = (primer *)layer;\n    weft_parameter_spec w1" found "${text}")
file(CONFIGURE OUTPUT ${sample} CONTENT "${found}" @ONLY)
add_executable(named_layer ${sample})
target_link_libraries(named_layer PRIVATE weft weft_flags)

weft_add_test(NAME examples TIER slow SOURCES examples/test_programs.c LABELS examples)
weft_add_test(NAME own_task TIER release SOURCES examples/test_own_task.c LABELS examples)
set_tests_properties(own_task PROPERTIES PROCESSORS 4)
add_dependencies(test_own_task weft_binary example_own_task)
weft_add_test(NAME example_configs TIER release SOURCES examples/test_configs.c LABELS examples)
foreach(test examples example_configs)
  add_dependencies(test_${test} weft_binary readme_sample small_layer named_layer example_dense_gpt example_moe_gpt
    example_own_layer)
endforeach()
weft_add_test(NAME own_layer SOURCES examples/test_own_layer.c LABELS examples)
weft_add_test_run(NAME own_layer_2 PROGRAM $<TARGET_FILE:test_own_layer> RANKS 2 LABELS examples)
weft_add_test(NAME config_page CMOCKA SOURCES examples/test_config_page.c LABELS style)
add_test(NAME docs_links COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/check_docs.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(docs_links PROPERTIES LABELS style)
add_test(NAME config_verb COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/config_verb.sh ${CMAKE_SOURCE_DIR}
  ${CMAKE_BINARY_DIR})
set_tests_properties(config_verb PROPERTIES LABELS style SKIP_RETURN_CODE 77)
add_test(NAME readme_commands COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/readme_commands.sh ${CMAKE_SOURCE_DIR}
  ${CMAKE_BINARY_DIR})
set_tests_properties(readme_commands PROPERTIES LABELS "examples;tier_slow" PROCESSORS 2)
