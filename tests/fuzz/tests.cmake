# Fuzz targets, a kind of input each. The tests replay corpus/KIND; the fuzz preset links the same
# targets with libFuzzer instead (scripts/fuzz).
add_custom_target(fuzz_targets)
function(weft_add_fuzz kind)
  cmake_parse_arguments(F "" "DAMAGED" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  set(sources fuzz/${kind}.c fuzz/fuzz.c ${F_SOURCES})
  if(WEFT_SANITIZE MATCHES fuzzer)
    add_executable(fuzz_${kind} EXCLUDE_FROM_ALL ${sources})
    target_link_libraries(fuzz_${kind} PRIVATE weft weft_flags ${F_LIBRARIES} -fsanitize=fuzzer)
    add_dependencies(fuzz_targets fuzz_${kind})
    return()
  endif()
  if(F_DAMAGED)
    set(damaged --damaged ${F_DAMAGED})
  endif()
  weft_add_test(NAME fuzz_${kind} SOURCES ${sources} fuzz/replay.c
    LIBRARIES ${F_LIBRARIES} LABELS ${F_LABELS}
    ARGS ${CMAKE_CURRENT_LIST_DIR}/corpus/${kind} ${damaged})
endfunction()

foreach(kind config cluster import)
  weft_add_fuzz(${kind} DAMAGED 4000)
endforeach()
weft_add_fuzz(tokenizer DAMAGED 2000)
foreach(kind dataset flight json_lines model)
  weft_add_fuzz(${kind} DAMAGED 400)
endforeach()
weft_add_fuzz(program DAMAGED 8000 SOURCES schedule/subjects.c schedule/programs.c
  LIBRARIES PkgConfig::CMOCKA)
weft_add_fuzz(order DAMAGED 12000 SOURCES schedule/programs.c LIBRARIES PkgConfig::CMOCKA)
weft_add_fuzz(checkpoint LIBRARIES PkgConfig::HDF5 PkgConfig::XXHASH)
weft_add_fuzz(hdf5 LIBRARIES PkgConfig::HDF5)
# What would start ranks or processes.
foreach(function weft_start_ranks weft_launch_mpirun weft_comm_create_self weft_comm_create_world
    weft_stop_catch_signals weft_stop_catch_wishes fork)
  list(APPEND refused -Wl,--wrap=${function})
endforeach()
weft_add_fuzz(command LIBRARIES ${refused})
