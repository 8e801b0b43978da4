target_link_libraries(weft_core PUBLIC PkgConfig::CJSON)
