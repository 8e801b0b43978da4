#!/usr/bin/env bash
# Models that Weft trained from nothing have the same losses in transformers (tests/oracle/read_exports.py).
#   transformers_reads.sh WEFT READER        WEFT_TORCH_PYTHON: the Python that has transformers; python3
exec "${WEFT_TORCH_PYTHON:-python3}" "${2:?usage: transformers_reads.sh WEFT READER}" "$1"
