target_link_libraries(weft_comm PUBLIC MPI::MPI_C)
