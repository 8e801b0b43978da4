# The stand-in for CUDA's runtime library (WEFT_CUDA=emulated). Shared, as stand-ins for libraries on
# top of it are loaded by programs that already have it.
file(GLOB emulate_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/emulate_*.c)
add_library(weft_emulated_cuda SHARED ${emulate_sources})
target_include_directories(weft_emulated_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(weft_emulated_cuda PRIVATE weft_flags)
