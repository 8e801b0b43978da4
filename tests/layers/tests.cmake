weft_add_test(NAME golden SOURCES layers/golden.c layers/harness.c LABELS layers)
