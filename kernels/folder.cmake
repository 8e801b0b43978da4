# oneDNN for GEMM; our own vector code is compiled once an instruction set (kernels/cpu/vector_*.c)
# and chosen at run time, so that one build serves a cluster of mixed CPUs.
target_link_libraries(weft_kernels PUBLIC DNNL::dnnl)
if(OpenMP_C_FOUND)
  target_link_libraries(weft_kernels PUBLIC OpenMP::OpenMP_C)
endif()
file(GLOB vector_sources CONFIGURE_DEPENDS kernels/cpu/vector_*.c)
set(isas baseline)
set(flags_baseline "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND isas avx2 avx512)
  set(flags_avx2 -mavx2 -mfma -mf16c)
  set(flags_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
    -mprefer-vector-width=512)
endif()
# A sanitizer's checks keep loops from becoming vectors, however long the compiler tries; clang warns
# of each, and takes 40 s for attention where it checks each access in place and each pointer's
# arithmetic beside it.
set(flags_level -O3)
if(WEFT_SANITIZE)
  set(flags_level -O1)
  if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    list(APPEND flags_level -Wno-pass-failed "SHELL:-mllvm -pragma-unroll-threshold=1") # compiles in a third
    if(WEFT_SANITIZE MATCHES address)
      list(APPEND flags_level "SHELL:-mllvm -asan-instrumentation-with-call-threshold=100")
    endif()
    if(WEFT_SANITIZE MATCHES undefined)
      list(APPEND flags_level -fno-sanitize=null,alignment,object-size,pointer-overflow)
    endif()
  endif()
endif()
foreach(isa ${isas})
  if(vector_sources)
    add_library(weft_kernels_${isa} OBJECT ${vector_sources})
    target_link_libraries(weft_kernels_${isa} PRIVATE weft_kernels)
    target_compile_options(weft_kernels_${isa} PRIVATE ${flags_${isa}} ${flags_level}
      -ffp-contract=fast -fno-math-errno -fno-trapping-math)
    target_compile_definitions(weft_kernels_${isa} PRIVATE WEFT_ISA=${isa})
    list(APPEND WEFT_OBJECTS $<TARGET_OBJECTS:weft_kernels_${isa}>)
  endif()
endforeach()

# Where dlopen does not look of itself.
if(WEFT_CUDA STREQUAL on AND CUDAToolkit_LIBRARY_DIR)
  set_source_files_properties(kernels/cuda/cublas.c PROPERTIES
    COMPILE_DEFINITIONS WEFT_CUDA_LIBRARY_FOLDER="${CUDAToolkit_LIBRARY_DIR}")
endif()

# CUDA kernels, or the same sources as C++ (tests/cuda/emulate.cuh).
file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cu)
if(cuda_sources AND NOT WEFT_CUDA STREQUAL off)
  add_library(weft_kernels_cuda OBJECT ${cuda_sources})
  target_include_directories(weft_kernels_cuda PRIVATE ${CMAKE_SOURCE_DIR}
    ${CMAKE_SOURCE_DIR}/include)
  set_target_properties(weft_kernels_cuda PROPERTIES CUDA_STANDARD 17 CXX_STANDARD 17)
  if(WEFT_CUDA STREQUAL on)
    target_compile_options(weft_kernels_cuda PRIVATE ${WEFT_CUDA_CODE} -Xcompiler=-Wall,-Wextra)
    if(WEFT_WERROR)
      target_compile_options(weft_kernels_cuda PRIVATE -Werror=all-warnings -Xcompiler=-Werror)
    endif()
  else()
    set_source_files_properties(${cuda_sources} PROPERTIES LANGUAGE CXX)
    target_link_libraries(weft_kernels_cuda PRIVATE weft_emulate_flags)
  endif()
  list(APPEND WEFT_OBJECTS $<TARGET_OBJECTS:weft_kernels_cuda>)
endif()
