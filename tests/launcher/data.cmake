weft_add_test(NAME launcher_bpe CMOCKA SOURCES launcher/test_bpe.c)
weft_add_test(NAME launcher_tokenizer_json CMOCKA SOURCES launcher/test_tokenizer_json.c)
weft_add_test(NAME tokenizer_json_run TIER release SOURCES launcher/tokenizer_json_run.c launcher/child.c
  LABELS launcher)
weft_add_test(NAME launcher_gpt2 CMOCKA SOURCES launcher/test_gpt2.c)
weft_add_test(NAME launcher_prepare CMOCKA SOURCES launcher/test_prepare.c launcher/child.c)

# GPT-2's vocabulary, where somebody keeps it beside the checkout; $WEFT_GPT2_DIR goes before it.
file(GLOB nearby ${CMAKE_SOURCE_DIR}/../*/data/gpt2/encoder.json)
if(nearby)
  list(GET nearby 0 nearby)
  get_filename_component(nearby ${nearby} DIRECTORY)
  set_property(TEST launcher_gpt2 APPEND PROPERTY ENVIRONMENT "WEFT_GPT2_NEARBY=${nearby}")
endif()
