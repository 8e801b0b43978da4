# The stand-in for cuBLASLt and cuBLAS, under the names of the real ones: programs find it first by
# their own search path.
set(directory ${CMAKE_BINARY_DIR}/emulated)
add_library(weft_cublas_emulated MODULE ${CMAKE_CURRENT_LIST_DIR}/cublas_emulated.c
  ${CMAKE_CURRENT_LIST_DIR}/cublas_emulated_product.c)
target_link_libraries(weft_cublas_emulated PRIVATE weft_flags)
target_include_directories(weft_cublas_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(weft_cublas_emulated PRIVATE -O3)
set_target_properties(weft_cublas_emulated PROPERTIES PREFIX "" OUTPUT_NAME libcublasLt.so
  SUFFIX .13 LIBRARY_OUTPUT_DIRECTORY ${directory})
add_custom_command(TARGET weft_cublas_emulated POST_BUILD
  COMMAND ${CMAKE_COMMAND} -E create_symlink libcublasLt.so.13 ${directory}/libcublas.so.13)
target_link_options(weft INTERFACE LINKER:-rpath,${directory}
  LINKER:--export-dynamic-symbol=weft_emulate_*)
add_dependencies(weft weft_cublas_emulated)
