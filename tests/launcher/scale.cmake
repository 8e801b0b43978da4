# Planning's own sources once more, each basic block of which calls the test.
file(GLOB planned CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/schedule/*.c
  ${CMAKE_SOURCE_DIR}/schedule/*/*.c
  ${CMAKE_SOURCE_DIR}/launcher/planning/*.c)
add_library(weft_counted OBJECT ${planned})
target_link_libraries(weft_counted PRIVATE weft weft_flags)
target_compile_options(weft_counted PRIVATE -fsanitize-coverage=trace-pc -O0)
weft_add_test(NAME plan_scale TIER nightly CMOCKA SOURCES launcher/test_scale.c $<TARGET_OBJECTS:weft_counted>
  LABELS launcher)
target_link_options(test_plan_scale PRIVATE -Wl,--wrap=calloc,--wrap=malloc)
