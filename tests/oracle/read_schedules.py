#!/usr/bin/env python3
"""Has PyTorch's own reader (torch.distributed.pipelining) take orders of compute that Weft wrote: it reads
the CSV, checks that every forward and backward stands there once and in order, makes messages, and runs
them dry, where ranks that wait for each other in a circle never end.

    python3 read_schedules.py MICRO_BATCHES,RANKS,STAGES,FILE...      (PyTorch 2.9 or later)
"""
import sys

import torch
from torch.distributed.pipelining import schedules


class Stage:
    """What a schedule asks of a stage before it runs."""

    has_backward = True
    stage_index, group, group_rank = 0, None, 0
    is_first = True

    def __init__(self, ranks, count):
        self.num_stages, self.group_size = count, ranks
        self.is_last = count == 1


def read(path, micro_batches, ranks, count):
    reader = schedules._PipelineScheduleRuntime([Stage(ranks, count)], micro_batches, loss_fn=lambda y, t: y)
    reader._load_csv(path)
    ranks_of = reader.stage_index_to_group_rank
    computes = {  # the dry run knows no pairs
        rank: [one for action in row if action for one in action.sub_actions or (action,)]
        for rank, row in reader.pipeline_order.items()
    }
    sent = schedules._add_send_recv(computes, lambda stage: ranks_of[stage], count)
    schedules._simulate_comms_compute(sent, lambda stage: ranks_of[stage], count)


def main():
    for what in sys.argv[1:]:
        micro_batches, ranks, count, path = what.split(",", 3)
        try:
            read(path, int(micro_batches), int(ranks), int(count))
        except Exception as error:
            sys.exit(f"{path}: {error}")
    print(f"{len(sys.argv) - 1} files read by PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
