include(${CMAKE_CURRENT_LIST_DIR}/elementwise.cmake OPTIONAL)
