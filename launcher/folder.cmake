target_link_libraries(weft_launcher PUBLIC PkgConfig::PCRE2 PkgConfig::CJSON MPI::MPI_C)
