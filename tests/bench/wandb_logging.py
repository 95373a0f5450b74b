#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the Weights & Biases logger costs a training step: runs with and without it, in turns on one machine.

    scripts/bench.sh wandb [--binary build/bin/dalle2-train] [--config tests/bench/step.json] [--steps 60] [--rounds 5] [--threads 2]
        [--delay 0.2]

With it, a double of the service on the loopback takes the records of every step; each of its answers comes `--delay` seconds late. A
run's figure is the median over its steps, the first five left out. Prints min, median and max over the rounds, and of the ratios.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import decoder_step
from decoder_step import ROOT

sys.path.insert(0, str(ROOT / "tests/support"))
from wandb_double import WandbDouble  # noqa: E402

WANDB = {"log_type": "wandb", "wandb_entity": "somebody", "wandb_project": "bench"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/bin/dalle2-train"))
    parser.add_argument("--config", default=str(ROOT / "tests/bench/step.json"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--delay", type=float, default=0.2)
    arguments = parser.parse_args()
    double = WandbDouble()
    double.mistreat = lambda handler, kind, number: time.sleep(arguments.delay)
    os.environ.update(double.environment())
    seconds = {"console": [], "console and wandb": []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = decoder_step.prepare(arguments, folder)
        for _ in range(arguments.rounds):
            for label, log in (("console", {"log_type": "console"}), ("console and wandb", [{"log_type": "console"}, WANDB])):
                config["tracker"]["log"] = log
                (folder / "config.json").write_text(json.dumps(config))
                seconds[label].append(decoder_step.ours(arguments, 1, folder, config)[0])
    rows = [len(run.history) for run in double.runs.values()]
    assert len(rows) == arguments.rounds and min(rows) >= arguments.steps, rows
    for label, values in seconds.items():
        decoder_step.line(f"{label}, ms a step", [1e3 * value for value in values])
    ratios = [without / using for without, using in zip(*seconds.values())]
    decoder_step.line("without / with", ratios)
    print(f"figure step.wandb = {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
