# The emulation itself, with the threads of a block in both orders.
if(WEFT_CUDA STREQUAL emulated)
  set(source ${CMAKE_CURRENT_LIST_DIR}/test_emulate.cu)
  set_source_files_properties(${source} PROPERTIES LANGUAGE CXX)
  add_executable(test_cuda_emulate ${source})
  target_link_libraries(test_cuda_emulate PRIVATE weft weft_emulate_flags)
  set(source ${CMAKE_CURRENT_LIST_DIR}/test_attention_order.cu)
  set_source_files_properties(${source} PROPERTIES LANGUAGE CXX)
  add_executable(test_cuda_attention_order ${source})
  target_link_libraries(test_cuda_attention_order PRIVATE weft weft_emulate_flags)
  add_dependencies(checked_tests test_cuda_emulate test_cuda_attention_order)
  weft_add_test_run(NAME cuda_attention_order PROGRAM $<TARGET_FILE:test_cuda_attention_order>
    LABELS cuda)
  foreach(order forward backward)
    weft_add_test_run(NAME cuda_emulate_${order} PROGRAM $<TARGET_FILE:test_cuda_emulate>
      LABELS cuda)
    set_property(TEST cuda_emulate_${order} APPEND PROPERTY ENVIRONMENT WEFT_EMULATE_ORDER=${order})
  endforeach()
endif()
