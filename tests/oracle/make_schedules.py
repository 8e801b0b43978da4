#!/usr/bin/env python3
"""Writes the schedules that tests/launcher/mesh_invariance.c trains by: interleaved 1F1B orders of
compute, made and written by PyTorch (torch.distributed.pipelining) itself, one CSV each.

    python3 make_schedules.py OUT_DIR        (PyTorch 2.5 or later)

No step runs: PyTorch's schedule needs stages that say how many they are, and nothing else of them.
"""
import sys

import torch
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

# ranks, virtual stages a rank, micro-batches
SHAPES = [(2, 2, 8), (2, 3, 4), (4, 2, 8)]


class Stage:
    """What a schedule asks of a stage before it runs."""

    def __init__(self, index, rank, ranks, count):
        self.stage_index, self.num_stages = index, count
        self.group, self.group_rank, self.group_size = None, rank, ranks
        self.is_first, self.is_last = index == 0, index == count - 1
        self.has_backward = True
        self.stage_index_to_group_rank = {s: s % ranks for s in range(count)}

    def _prepare_forward_infra(self, *_):
        pass

    _prepare_backward_infra = _prepare_forward_infra


def main():
    for ranks, chunks, micro_batches in SHAPES:
        count = ranks * chunks
        stages = [Stage(c * ranks, 0, ranks, count) for c in range(chunks)]
        schedule = ScheduleInterleaved1F1B(stages, micro_batches, loss_fn=lambda y, target: y)
        path = f"{sys.argv[1]}/interleaved_p{ranks}_v{chunks}_m{micro_batches}.csv"
        schedule._dump_csv(path)
        print(path, "by PyTorch", torch.__version__)


if __name__ == "__main__":
    main()
