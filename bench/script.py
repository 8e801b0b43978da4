"""What the scripts of this folder share: each other's functions, options, and a run's files."""
import argparse
import importlib.machinery
import importlib.util
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    """A script of this folder as a module."""
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(HERE, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def parser(doc, rounds=None, steps=None):
    """Of a script's line, with the options that many have."""
    out = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--rounds", rounds), ("--steps", steps)):
        if default:
            out.add_argument(name, type=int, default=default)
    out.add_argument("--weft", type=os.path.abspath, default="build/weft")
    out.add_argument("--json", help="a file for all results")
    return out


def table(header, rows):
    """In Markdown."""
    widths = [max(len(str(r[i])) for r in [header] + rows) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths]] + rows:
        print("| " + " | ".join(f"{cell:<{w}}" for cell, w in zip(row, widths)) + " |")
    print()


def write(path, value):
    """path None: nowhere."""
    if not path:
        return
    with open(path, "w") as file:
        json.dump(value, file, indent=1)


def read(path):
    with open(path) as file:
        return json.load(file)


def step_times(run):
    """Milliseconds of each step."""
    with open(f"{run}/metrics.jsonl") as file:
        lines = [json.loads(line) for line in file]
    return [line["step_ms"] for line in lines if "step_ms" in line]


def bytes_off(plan, run):
    """Purposes of memory whose fullest rank used another number of bytes than planned: [(stage, purpose, planned,
    used)]. Staging is of the moment and in no plan."""
    ranks = read(f"{run}/memory.json")["ranks"]
    off = []
    for stage in plan["stages"]:
        used = [rank["used"] for rank in ranks if rank["stage"] == stage["stage"]]
        for purpose, planned in stage["memory"].items():
            most = max(rank[purpose] for rank in used)
            if purpose != "staging" and most != planned:
                off.append((stage["stage"], purpose, planned, most))
    return off
