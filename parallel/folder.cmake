target_link_libraries(weft_parallel PUBLIC PkgConfig::HWLOC PkgConfig::HDF5 PkgConfig::XXHASH
  MPI::MPI_C)
if(URING_FOUND)
  target_compile_definitions(weft_parallel PRIVATE WEFT_HAS_LIBURING)
  target_link_libraries(weft_parallel PUBLIC PkgConfig::URING)
endif()
