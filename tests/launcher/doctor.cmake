weft_add_test(NAME doctor TIER release SOURCES launcher/test_doctor.c LABELS launcher mpi
  ARGS ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda LIBRARIES PkgConfig::CJSON)
add_library(fake_cuda SHARED launcher/fake_cuda.c)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda VERSION 1 SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_cuda)
target_compile_definitions(fake_cuda PRIVATE _GNU_SOURCE)
add_dependencies(test_doctor fake_cuda)
