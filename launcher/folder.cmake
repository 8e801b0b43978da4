target_link_libraries(weft_launcher PUBLIC PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::CJSON
  PkgConfig::ZLIB PkgConfig::ZSTD MPI::MPI_C)
# What `weft train` preloads into the mpirun that it starts, and where it looks for it.
add_library(weft_loopback MODULE launcher/process/preload/loopback.c)
target_compile_definitions(weft_loopback PRIVATE _GNU_SOURCE)
set_target_properties(weft_loopback PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set_source_files_properties(launcher/process/launch.c PROPERTIES COMPILE_DEFINITIONS
  "WEFT_LIBEXECDIR=\"/../${CMAKE_INSTALL_LIBEXECDIR}/weft\";WEFT_INSTALL_LIBEXECDIR=\"${CMAKE_INSTALL_FULL_LIBEXECDIR}/weft\";WEFT_BUILD_DIR=\"${CMAKE_BINARY_DIR}\"")
install(TARGETS weft_loopback LIBRARY DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/weft)
