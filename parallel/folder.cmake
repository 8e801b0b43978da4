target_link_libraries(weft_parallel PUBLIC PkgConfig::HWLOC PkgConfig::HDF5 PkgConfig::XXHASH
  MPI::MPI_C)
