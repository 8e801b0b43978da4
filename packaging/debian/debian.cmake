# `cpack -G DEB` in a build folder: weft (the command) and libweft-dev (the library). What no component
# names goes with the command.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "Weft developers")
set(CPACK_PACKAGE_CONTACT "Weft developers <weft@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains language models across a mesh of devices")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
  GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL Unspecified development)
set(CPACK_DEB_COMPONENT_INSTALL ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_NAME weft)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SECTION science)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_UNSPECIFIED_PACKAGE_DEPENDS openmpi-bin) # mpirun, which no library leads to
set(CPACK_DEBIAN_UNSPECIFIED_DESCRIPTION "Dense and mixture-of-experts models by tensor, sequence, context, expert,
pipeline and data parallelism, from one command and one JSON file; plans what
fits a cluster and how fast; writes jobs for mpirun, Slurm and Kubernetes.\n")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libweft-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(development "weft (= ${PROJECT_VERSION}-1)" libcjson-dev libdnnl-dev libhdf5-openmpi-dev
  libhwloc-dev libopenmpi-dev libpcre2-dev libutf8proc-dev libxxhash-dev libzstd-dev zlib1g-dev)
if(URING_FOUND)
  list(APPEND development liburing-dev)
endif()
list(JOIN development ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "The library, for programs with models of their own: headers, the static
library, and what pkg-config and CMake read of it.\n")

set(WEFT_DEBIAN_CHANGELOG ${CMAKE_BINARY_DIR}/debian-changelog)
configure_file(packaging/debian/changelog.in ${WEFT_DEBIAN_CHANGELOG} @ONLY)
configure_file(packaging/debian/staged.cmake.in ${CMAKE_BINARY_DIR}/debian-staged.cmake @ONLY)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_BINARY_DIR}/debian-staged.cmake)
