weft_add_test(NAME schedule_program CMOCKA
  SOURCES schedule/test_program.c schedule/programs.c)
weft_add_test(NAME schedule_pipeline CMOCKA
  SOURCES schedule/test_pipeline.c schedule/programs.c)
weft_add_test(NAME schedule_update CMOCKA
  SOURCES schedule/test_update.c schedule/programs.c)
weft_add_test(NAME schedule_pass CMOCKA
  SOURCES schedule/test_pass.c schedule/programs.c)
weft_add_test(NAME schedule_check CMOCKA
  SOURCES schedule/test_check.c schedule/machine.c schedule/programs.c)
weft_add_test(NAME schedule_price CMOCKA
  SOURCES schedule/test_price.c schedule/programs.c)
weft_add_test(NAME schedule_run CMOCKA LABELS tsan
  SOURCES schedule/test_run.c schedule/programs.c)
weft_add_test(NAME schedule_moe_layer CMOCKA
  SOURCES schedule/test_moe_layer.c schedule/moe_machine.c schedule/programs.c)
weft_add_test(NAME schedule_moe_price CMOCKA
  SOURCES schedule/test_moe_price.c schedule/moe_machine.c schedule/programs.c)
weft_add_test(NAME schedule_exchange_program CMOCKA
  SOURCES schedule/test_exchange_program.c schedule/programs.c)
weft_add_test(NAME schedule_exchange_cost CMOCKA
  SOURCES schedule/test_exchange_cost.c schedule/programs.c)
weft_add_test(NAME schedule_exchange_paper CMOCKA
  SOURCES schedule/test_exchange_paper.c schedule/programs.c)
weft_add_test(NAME schedule_choose CMOCKA
  SOURCES schedule/test_choose.c schedule/programs.c)
weft_add_test(NAME schedule_granularity CMOCKA
  SOURCES schedule/test_granularity.c schedule/programs.c)
weft_add_test(NAME schedule_placement CMOCKA
  SOURCES schedule/test_placement.c)
weft_add_test(NAME schedule_moe_run CMOCKA LABELS tsan
  SOURCES schedule/test_moe_run.c schedule/moe_machine.c schedule/programs.c)
weft_add_test(NAME schedule_cost CMOCKA SOURCES schedule/test_cost.c)
weft_add_test(NAME schedule_clusters CMOCKA SOURCES schedule/test_clusters.c)
weft_add_test(NAME schedule_interleaved CMOCKA
  SOURCES schedule/test_interleaved.c schedule/programs.c)
weft_add_test(NAME schedule_pair CMOCKA
  SOURCES schedule/test_pair.c)
weft_add_test(NAME schedule_orders CMOCKA
  SOURCES schedule/test_orders.c schedule/programs.c)
weft_add_test(NAME schedule_order_auto CMOCKA
  SOURCES schedule/test_order_auto.c schedule/programs.c)
weft_add_test(NAME schedule_damaged CMOCKA
  SOURCES schedule/test_damaged.c schedule/subjects.c schedule/programs.c)
weft_add_test(NAME schedule_properties CMOCKA
  SOURCES schedule/test_properties.c schedule/programs.c)
weft_add_test(NAME schedule_context CMOCKA
  SOURCES schedule/test_context.c schedule/programs.c)
weft_add_test(NAME schedule_experts CMOCKA
  SOURCES schedule/test_experts.c schedule/programs.c)
weft_add_test(NAME schedule_experts_steps CMOCKA
  SOURCES schedule/test_experts_steps.c schedule/programs.c)
