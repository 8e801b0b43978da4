# The stand-in for cuBLASLt and cuBLAS, under the names of the real ones and beside the stand-in for
# the runtime, where programs look first.
add_library(weft_cublas_emulated MODULE ${CMAKE_CURRENT_LIST_DIR}/cublas_emulated.c
  ${CMAKE_CURRENT_LIST_DIR}/cublas_emulated_product.c)
target_link_libraries(weft_cublas_emulated PRIVATE weft_flags weft_emulated_cuda)
target_include_directories(weft_cublas_emulated SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
if(NOT WEFT_SANITIZE)
  target_compile_options(weft_cublas_emulated PRIVATE -O3)
endif()
set_target_properties(weft_cublas_emulated PROPERTIES PREFIX "" OUTPUT_NAME libcublasLt.so
  SUFFIX .13 LIBRARY_OUTPUT_DIRECTORY $<TARGET_FILE_DIR:weft_emulated_cuda>)
add_custom_command(TARGET weft_cublas_emulated POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink
  libcublasLt.so.13 $<TARGET_FILE_DIR:weft_emulated_cuda>/libcublas.so.13)
# An RPATH also counts where a sanitizer's dlopen stands in between, a RUNPATH does not.
target_link_options(weft_emulated_cuda INTERFACE LINKER:--disable-new-dtags)
cmake_language(DEFER CALL add_dependencies weft weft_cublas_emulated)
