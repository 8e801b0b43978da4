# The stand-in for CUDA's runtime library (WEFT_CUDA=emulated). Shared, as stand-ins for libraries on
# top of it are loaded by programs that already have it.
file(GLOB emulate_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/emulate_*.c)
add_library(weft_emulated_cuda SHARED ${emulate_sources})
target_include_directories(weft_emulated_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(weft_emulated_cuda PRIVATE weft_flags)
target_compile_options(weft_emulated_cuda PRIVATE -O2) # which switches threads a million times a test

# Flags for CUDA sources as C++: without exceptions, for programs link as C; #pragma unroll is
# nvcc's; and gcc does not follow registers of which only some threads load all, nor lets numbers of
# 16 bits be copied as bytes.
add_library(weft_emulate_flags INTERFACE)
target_compile_definitions(weft_emulate_flags INTERFACE WEFT_CUDA_EMULATED)
target_compile_features(weft_emulate_flags INTERFACE cxx_std_17)
target_include_directories(weft_emulate_flags INTERFACE ${CMAKE_SOURCE_DIR}
  ${CMAKE_SOURCE_DIR}/include)
target_include_directories(weft_emulate_flags SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(weft_emulate_flags INTERFACE -x c++
  "SHELL:-include ${CMAKE_CURRENT_LIST_DIR}/emulate.cuh" -Wall -Wextra -Wno-unknown-pragmas
  -Wno-psabi -fno-exceptions -fno-rtti
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-class-memaccess>")
if(WEFT_WERROR)
  target_compile_options(weft_emulate_flags INTERFACE -Werror)
endif()
if(WEFT_SANITIZE) # what the checks add takes long to optimise further, and keeps loops as they are
  target_compile_options(weft_emulate_flags INTERFACE -fsanitize=${WEFT_SANITIZE}
    -fno-omit-frame-pointer -O1)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang") # alignment stays checked: a GPU faults where it is wrong
    target_compile_options(weft_emulate_flags INTERFACE -Wno-pass-failed
      "SHELL:-mllvm -asan-instrumentation-with-call-threshold=100"
      "SHELL:-mllvm -pragma-unroll-threshold=1" # compiles in a fifth
      -fno-sanitize=object-size,pointer-overflow)
  endif()
endif()

include(${CMAKE_CURRENT_LIST_DIR}/cublas.cmake)
