#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What loggers and savers of services cost a training step: runs without them, with the Weights & Biases logger, and with savers of the
hub, S3 and a web server beside it, in turns on one machine.

    scripts/bench.sh wandb [--binary build/bin/dalle2-train] [--config tests/bench/step.json] [--steps 60] [--rounds 5] [--threads 2]
        [--delay 0.2] [--saves 2]

Doubles of the services on the loopback take the records of every step and the file of every save; each answer of W&B comes `--delay`
seconds late. All runs save `--saves` times before their end. Two figures a run: the median over its steps, the first five left out, and
the processor time of the training process, which what else the machine does changes less. It counts the whole run, and what is sent
after the last step, too. Prints min, median and max over the rounds, and of the ratios.
"""
import json
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time

import decoder_step
from shared import ROOT, parser_of, spread

sys.path.insert(0, str(ROOT / "tests/support"))
from bad_server import Server  # noqa: E402
from hub_double import HubDouble  # noqa: E402
from s3_double import S3Double  # noqa: E402
from wandb_double import WandbDouble  # noqa: E402

CONSOLE = {"log_type": "console"}
WANDB = {"log_type": "wandb", "wandb_entity": "somebody", "wandb_project": "bench"}


def processor_seconds():
    """Of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(arguments, folder, config, doubles):
    """@return label -> seconds a step and processor seconds a step of each round"""
    hub, _, web = doubles
    local = config["tracker"]["save"]
    remote = [{"save_to": "huggingface", "huggingface_repo": "owner/bench", "save_latest_to": "l.pth", "model_card": False},
              {"save_to": "s3", "url": "s3://my-bucket", "save_latest_to": "l.pth"},
              {"save_to": "url", "url": web.url, "save_latest_to": "l.pth"}]
    ways = {"without": (CONSOLE, local), "again without": (CONSOLE, local),  # how much two equal runs differ
            "W&B": ([CONSOLE, WANDB], local), "W&B, savers": ([CONSOLE, WANDB], [local, *remote])}
    seconds, processor = {label: [] for label in ways}, {label: [] for label in ways}
    for _ in range(arguments.rounds):
        for label, (log, save) in ways.items():
            config["tracker"].update(log=log, save=save)
            (folder / "config.json").write_text(json.dumps(config))
            before = processor_seconds()
            seconds[label].append(decoder_step.ours(arguments, 1, folder, config)[0])
            processor[label].append((processor_seconds() - before) / arguments.steps)
        sent = (folder / "out/checkpoint.pth").read_bytes()
        assert hub.file("owner/bench", "l.pth") == sent
        assert all((folder / name / "l.pth").read_bytes() == sent for name in ("bucket", "web"))
    return seconds, processor


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=5, threads=2)
    parser.add_argument("--config", default=str(ROOT / "tests/bench/step.json"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--delay", type=float, default=0.2)
    parser.add_argument("--saves", type=int, default=2)
    arguments = parser.parse_args()
    wandb = WandbDouble()
    wandb.mistreat = lambda handler, kind, number: time.sleep(arguments.delay)
    with tempfile.TemporaryDirectory() as name, HubDouble() as hub:
        folder = pathlib.Path(name)
        for part in ("bucket", "web"):
            (folder / part).mkdir()
        with S3Double(folder / "bucket", "my-bucket") as store, Server(folder / "web") as web:
            os.environ.update({**wandb.env(), **hub.env(), **store.env(), "NETRC": "/nonexistent"})
            config = decoder_step.prepare(arguments, folder)
            config["train"]["save_every_n_samples"] = arguments.steps * config["data"]["batch_size"] // (arguments.saves + 1)
            seconds, processor = measure(arguments, folder, config, (hub, store, web))
    rows = [len(run.history) for run in wandb.runs.values()]
    assert len(rows) == 2 * arguments.rounds and min(rows) >= arguments.steps, rows
    for what, values in (("ms a step", seconds), ("processor ms a step", processor)):
        for label in values:
            print(f"{label}, {what}: {spread([1e3 * value for value in values[label]])}")
        for label in list(values)[1:]:
            ratios = [with_it / without for without, with_it in zip(values["without"], values[label])]
            print(f"{label} / without, {what}: {spread(ratios, '.3f')}")
    for name, label in (("wandb", "W&B"), ("services", "W&B, savers")):
        for what, values in (("", seconds), (".processor", processor)):
            ratios = [without / with_it for without, with_it in zip(values["without"], values[label])]
            print(f"figure step.{name}{what} = {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
