include(parallel/state.cmake OPTIONAL)
