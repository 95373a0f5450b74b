#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What saving costs a training of the decoder: in the background, at once, and when a signal stops the run.

    tests/bench/decoder_save.py [--binary build/bin/dalle2-train] [--rounds 5] [--steps 300] [--every 100] [--threads 2]
        [--stop-dim 136]

A round trains a small decoder three times, in turns: without a snapshot, with one every --every steps and
async_save, and with one and without async_save. The figures are the time of a step over the whole run, the part of it
in which the loop stood still for a save, and what saves cost in all: how much longer the steps of a run are than those
of its stretches of ten steps without a save in them or in the ten before. Runs differ by several per cent without any cause; stretches
of one run do less. Then a decoder of 2 GiB of state gets a SIGTERM; the figure is the time to
its end, the step that was going on and the checkpoint included.
"""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

from shared import ROOT, make_demo, parser_of, spread, tracker

MODES = {"none": (10 ** 9, True), "async": (None, True), "sync": (None, False)}


def make_config(folder, **train):
    config = json.loads((ROOT / "tests/bench/step.json").read_text())
    config["data"].update(webdataset_base_url=f"{folder}/shards/{{}}.tar", img_embeddings_url=f"{folder}/shards/img_emb")
    config["train"].update(epochs=1, n_sample_images=0, validation_samples=1, **train)
    config["tracker"] = tracker(folder, "out/latest.pth")
    return config


def start(arguments, folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "out/log.jsonl").unlink(missing_ok=True)
    return subprocess.Popen([arguments.binary, "--config", folder / "config.json", "--quiet"], cwd=folder, stdout=subprocess.DEVNULL,
                            env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})


def records(folder):
    path = folder / "out/log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def train(arguments, folder, mode):
    """Seconds of a step, the part of them that a save stood in the way, and the part that saves cost in all."""
    every, in_background = MODES[mode]
    config = make_config(folder, async_save=in_background)
    batch = config["data"]["batch_size"]
    config["train"].update(epoch_samples=arguments.steps * batch, save_every_n_samples=every or arguments.every * batch - 1)
    if start(arguments, folder, config).wait() != 0:
        raise SystemExit("the run failed")
    steps = [record for record in records(folder) if "Seconds forward" in record][1:]  # the first has one step
    totals = [sum(value for key, value in record.items() if key.startswith("Seconds ")) for record in steps]
    saves = [record.get("Seconds save", 0) for record in steps]
    total = statistics.mean(totals)
    quiet = [t for t, here, before in zip(totals, saves, [1.0] + saves) if here == 0 and before == 0]
    return total, statistics.mean(saves) / total, 1 - statistics.mean(quiet) / total


def stop(arguments, folder):
    """Seconds from SIGTERM to the end, seconds of a step, and the checkpoint's bytes."""
    config = make_config(folder)
    config["decoder"]["unets"][0].update(dim=arguments.stop_dim, dim_mults=[1, 2, 4, 4], num_resnet_blocks=2)
    config["data"]["batch_size"] = 1
    process = start(arguments, folder, config)
    while len([r for r in records(folder) if "Step" in r]) < 2:
        if process.poll() is not None:
            raise SystemExit("the run ended by itself")
        time.sleep(0.1)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait()
    seconds = time.monotonic() - begin
    if code != 75:
        raise SystemExit(f"expected exit code 75, got {code}")
    step = [r for r in records(folder) if "Seconds forward" in r][-1]
    return seconds, sum(value for key, value in step.items() if key.startswith("Seconds ")), (folder / "out/checkpoint.pth").stat().st_size


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=5, threads=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--stop-dim", type=int, default=136)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_demo(arguments.binary, folder / "shards", arguments.steps * 40, 32)
        rows = []
        for number in range(arguments.rounds):
            rows.append({mode: train(arguments, folder, mode) for mode in MODES})
            print(f"round {number + 1}: " + ", ".join(f"{mode} {total * 1e3:.1f} ms a step, {share * 100:.2f} % waiting"
                                                     for mode, (total, share, _) in rows[-1].items()), flush=True)
        for mode in ("async", "sync") if rows else ():
            print(f"{mode}, % of a step waiting: {spread([100 * row[mode][1] for row in rows])}")
            print(f"{mode}, % of a step in all: {spread([100 * row[mode][2] for row in rows])}")
            print(f"{mode}, % longer than without: {spread([100 * (row[mode][0] / row['none'][0] - 1) for row in rows])}")
        seconds, step, size = stop(arguments, folder)
        print(f"stopped by a signal: {seconds:.1f} s to the end, a step takes {step:.1f} s, checkpoint.pth has {size / 2 ** 30:.2f} GiB")
    if rows:
        print(f"figure save.async_percent = {statistics.median(row['async'][2] for row in rows) * 100:.2f}")
    print(f"figure save.stop_seconds = {seconds:.1f}")


if __name__ == "__main__":
    main()
