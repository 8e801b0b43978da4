target_link_libraries(weft_comm PUBLIC MPI::MPI_C)
# Reductions are loops over plain arrays: worth the compiler's vectoriser.
set_source_files_properties(comm/fold.c PROPERTIES COMPILE_OPTIONS -O3)
