foreach(name program pipeline update pass price exchange_program exchange_cost exchange_paper
    choose choose_rows granularity interleaved orders order_auto properties context tensor experts
    bodies bodies_drawn)
  weft_add_test(NAME schedule_${name} CMOCKA SOURCES schedule/test_${name}.c schedule/programs.c)
endforeach()
weft_add_test(NAME schedule_check CMOCKA
  SOURCES schedule/test_check.c schedule/machine.c schedule/programs.c)
weft_add_test(NAME schedule_run CMOCKA LABELS tsan
  SOURCES schedule/test_run.c schedule/programs.c)
weft_add_test(NAME schedule_moe_layer CMOCKA
  SOURCES schedule/test_moe_layer.c schedule/moe_machine.c schedule/programs.c)
weft_add_test(NAME schedule_moe_price CMOCKA
  SOURCES schedule/test_moe_price.c schedule/moe_machine.c schedule/programs.c)
weft_add_test(NAME schedule_placement CMOCKA
  SOURCES schedule/test_placement.c)
weft_add_test(NAME schedule_cost CMOCKA SOURCES schedule/test_cost.c)
weft_add_test(NAME schedule_clusters CMOCKA SOURCES schedule/test_clusters.c)
weft_add_test(NAME schedule_pair CMOCKA
  SOURCES schedule/test_pair.c)

