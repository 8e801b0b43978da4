# What cmake --install puts beside the command and the library, and the packages that `cpack` makes of
# both: documents, examples, a module file, weft.pc.
install(FILES README.md CHANGELOG.md CITATION.cff SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})

# pkg-config's: the same libraries as those of find_package(weft); the library and its headers by where
# they lie from weft.pc.
set(pc ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH WEFT_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH WEFT_PC_LIBDIR ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR})
set(WEFT_PC_MODULES libcjson hwloc libpcre2-8 libutf8proc libxxhash zlib libzstd ${HDF5_MODULE_NAME})
if(URING_FOUND)
  list(APPEND WEFT_PC_MODULES liburing)
endif()
set(WEFT_PC_LIBRARIES "")
pkg_search_module(MPI_PC QUIET ompi-c mpich)
if("${MPI_PC_LINK_LIBRARIES}" STREQUAL "${MPI_C_LIBRARIES}")
  list(APPEND WEFT_PC_MODULES ${MPI_PC_MODULE_NAME})
else()
  list(APPEND WEFT_PC_LIBRARIES ${MPI_C_LIBRARIES})
endif()
get_filename_component(dnnl_folder ${DNNL_LIBRARY} DIRECTORY)
if(dnnl_folder IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
  list(APPEND WEFT_PC_LIBRARIES -ldnnl)
else()
  list(APPEND WEFT_PC_LIBRARIES ${DNNL_LIBRARY})
endif()
if(OpenMP_C_FOUND)
  list(APPEND WEFT_PC_LIBRARIES ${OpenMP_C_FLAGS})
endif()
if(WEFT_CUDA STREQUAL on)
  list(APPEND WEFT_PC_LIBRARIES ${CUDA_cudart_static_LIBRARY} -lstdc++ -lrt -ldl)
endif()
list(JOIN WEFT_PC_MODULES ", " WEFT_PC_MODULES)
list(JOIN WEFT_PC_LIBRARIES " " WEFT_PC_LIBRARIES)
configure_file(packaging/weft.pc.in ${CMAKE_BINARY_DIR}/weft.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/weft.pc DESTINATION ${pc} COMPONENT development)

# Of Environment Modules and Lmod; Debian's package needs none.
set(modules ${CMAKE_INSTALL_FULL_DATADIR}/modulefiles/weft)
file(RELATIVE_PATH WEFT_MODULES_PREFIX ${modules} ${CMAKE_INSTALL_PREFIX})
configure_file(packaging/modulefile.in ${CMAKE_BINARY_DIR}/modulefile @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/modulefile DESTINATION ${CMAKE_INSTALL_DATADIR}/modulefiles/weft
  RENAME ${PROJECT_VERSION} COMPONENT modules)

include(packaging/debian/debian.cmake)
include(CPack)
