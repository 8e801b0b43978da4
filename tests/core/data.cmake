weft_add_test(NAME core_options CMOCKA SOURCES core/test_options.c)
weft_add_test(NAME core_options_fuzz CMOCKA SOURCES core/test_options_fuzz.c)
weft_add_test(NAME core_dataset CMOCKA SOURCES core/test_dataset.c)
weft_add_test(NAME core_dataset_damage CMOCKA SOURCES core/test_dataset_damage.c)
