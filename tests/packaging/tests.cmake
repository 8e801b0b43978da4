# What packaging/ makes: each test is skipped, and says why, where the tool that it needs is not here.
function(weft_packaging_test name)
  cmake_parse_arguments(T "" "TIER;TIMEOUT" "COMMAND" ${ARGN})
  add_test(NAME packaging_${name} COMMAND ${T_COMMAND} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 900)
  endif()
  set_tests_properties(packaging_${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77
    LABELS "packaging;tier_${T_TIER}")
endfunction()

set(packaging ${CMAKE_CURRENT_LIST_DIR})
weft_packaging_test(recipes TIER release COMMAND bash ${packaging}/recipes)
weft_packaging_test(easybuild TIER nightly COMMAND bash ${packaging}/easybuild)
weft_packaging_test(reframe TIER nightly COMMAND bash ${packaging}/reframe ${CMAKE_BINARY_DIR})
weft_packaging_test(container TIER nightly TIMEOUT 3600 COMMAND bash ${packaging}/container)
if(NOT WEFT_CUDA STREQUAL emulated AND NOT WEFT_SANITIZE) # which are not packed
  weft_packaging_test(modulefile TIER release COMMAND bash ${packaging}/modulefile ${CMAKE_BINARY_DIR})
  weft_packaging_test(debian TIER nightly COMMAND bash ${packaging}/debian ${CMAKE_BINARY_DIR})
  weft_packaging_test(clean_debian TIER nightly TIMEOUT 1800
    COMMAND bash ${packaging}/clean_debian ${CMAKE_BINARY_DIR})
endif()
set_tests_properties(packaging_recipes PROPERTIES LABELS "packaging;style;tier_release")
