function(weft_style_test name)
  cmake_parse_arguments(T "" "" "LABELS;COMMAND" ${ARGN})
  add_test(NAME style_${name} COMMAND ${T_COMMAND} WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
    COMMAND_EXPAND_LISTS)
  set_tests_properties(style_${name} PROPERTIES SKIP_RETURN_CODE 77
    LABELS "style;${T_LABELS}")
endfunction()

set(style ${CMAKE_CURRENT_LIST_DIR})
weft_style_test(floors COMMAND bash ${style}/floors)
weft_style_test(floors_refuses COMMAND bash ${style}/floors refuses)
foreach(library ${WEFT_LIBRARIES})
  list(APPEND objects $<TARGET_OBJECTS:${library}>)
endforeach()
weft_style_test(calls COMMAND bash ${style}/calls ${objects})
weft_style_test(calls_refuses COMMAND bash ${style}/calls refuses)
weft_style_test(text COMMAND bash ${style}/text)
weft_style_test(text_refuses COMMAND bash ${style}/text refuses)
weft_style_test(format COMMAND bash ${CMAKE_SOURCE_DIR}/scripts/format --check)
weft_style_test(gpu_check COMMAND bash ${style}/gpu_check)
find_program(WEFT_CXX NAMES $ENV{CXX} g++ c++)
weft_style_test(headers LABELS tier_slow COMMAND bash ${style}/headers ${CMAKE_C_COMPILER} ${WEFT_CXX}
  $<TARGET_PROPERTY:weft,INTERFACE_INCLUDE_DIRECTORIES>
  $<TARGET_PROPERTY:PkgConfig::CMOCKA,INTERFACE_INCLUDE_DIRECTORIES> ${CUDAToolkit_INCLUDE_DIRS})

weft_style_test(manual COMMAND bash ${style}/manual ${CMAKE_SOURCE_DIR}/scripts $<TARGET_FILE:weft_binary>)
weft_style_test(completion COMMAND bash ${style}/completion ${CMAKE_SOURCE_DIR}/scripts
  $<TARGET_FILE:weft_binary>)
weft_style_test(plan_needed LABELS pure
  COMMAND bash ${style}/needed $<TARGET_FILE:weft_plan> $<TARGET_FILE:weft_binary>)
weft_style_test(plan_alone LABELS pure tier_nightly
  COMMAND bash ${style}/plan_alone ${CMAKE_C_COMPILER} $<TARGET_FILE:weft_binary>)

if(NOT WEFT_CUDA STREQUAL emulated) # which is not installed
  weft_style_test(installed
    COMMAND bash ${style}/installed ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER})
endif()
