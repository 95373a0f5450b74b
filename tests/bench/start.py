#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""From the start of the process to the first batch of a decoder's run, ours against dalle2-pytorch's, in turns on one machine.

    scripts/bench.sh start [--only small b64] [--rounds 5] [--threads 2]

Both load the same demo shards and embeddings with the same config. Ours is `dalle2-train --config`, up to the line that its trace of
samples gets. The reference's script is not part of its package: what it does is written out here, in its order: imports, config, data
loaders (with one worker), decoder, trainer with its average, then the first batch. `small` is tests/bench/step.json, `b64` a decoder of
50 million parameters. Wall time, processor time of the process and its children, and the largest resident memory of the process, all read
when the first batch is there; the process is then ended. Files are in the page cache: a start that is not counted comes first.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from decoder_steps import geomean, text_of
from shared import make_demo, parser_of, tracker

CONFIGS = {"small": "step.json", "b64": "step/b64.json"}
LONGEST = 300  # seconds
TICKS = os.sysconf("SC_CLK_TCK")


def reference(config_path, mark):
    """initialize_training() and the head of train() of the reference's train_decoder.py."""
    sys.path.remove(str(pathlib.Path(__file__).resolve().parent))  # whose clip.py is not the package of that name
    import click  # noqa: F401
    import torch
    import torchvision  # noqa: F401
    import webdataset  # noqa: F401
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from dalle2_pytorch.dataloaders import create_image_embedding_dataloader
    from dalle2_pytorch.trackers import Tracker  # noqa: F401
    from dalle2_pytorch.train_configs import DecoderConfig
    from dalle2_pytorch.trainer import DecoderTrainer
    from torchvision import transforms
    config = json.loads(pathlib.Path(config_path).read_text())
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True, static_graph=True)])
    data = config["data"]
    urls = [data["webdataset_base_url"].format(str(shard).zfill(6)) for shard in range(data["end_shard"] + 1)]
    loaders = {name: create_image_embedding_dataloader(
        tar_url=part, num_workers=1, batch_size=data["batch_size"], img_embeddings_url=data["img_embeddings_url"], index_width=4,
        shuffle_num=None, shuffle_shards=name == "train", resample_shards=False, img_preproc=transforms.Compose([transforms.ToTensor()]),
        extra_keys=[]) for name, part in (("train", urls[:-2]), ("val", urls[-2:-1]), ("test", urls[-1:]))}
    decoder = DecoderConfig(**config["decoder"]).create()
    trainer = DecoderTrainer(decoder=decoder, accelerator=accelerator, dataloaders=loaders, use_ema=True, lr=1e-3, wd=1e-2, max_grad_norm=0.5)
    for image, _ in trainer.train_loader:
        mark.write_text(f"{len(image)}\n")
        time.sleep(LONGEST)


def children_of(process):
    """It and all below it."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # ended meanwhile
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def cpu_seconds(process):
    ticks = 0
    for each in children_of(process):
        fields = pathlib.Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def peak_mib(process):
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("no VmHWM in /proc")


def measure(command, mark, folder, environment):
    """Runs it until `mark` has something. @return the figures of the start"""
    mark.unlink(missing_ok=True)
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               start_new_session=True)
    while not (mark.exists() and mark.stat().st_size):
        if process.poll() is not None or time.monotonic() - begin > LONGEST:
            raise SystemExit(f"{command[0]}: no batch came\n{process.stderr.read().decode()[-2000:] if process.poll() is not None else ''}")
        time.sleep(0.002)
    found = {"wall": time.monotonic() - begin, "cpu": cpu_seconds(process.pid), "peak": peak_mib(process.pid)}
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return found


def prepare(arguments, name, folder):
    """Demo shards, and the config of a run on them, with the width of their embeddings."""
    import numpy
    config = json.loads((pathlib.Path(__file__).parent / CONFIGS[name]).read_text())
    shards = folder / f"shards_{name}"
    make_demo(arguments.binary, shards, 1000, config["decoder"]["image_size"])
    for unet in config["decoder"]["unets"]:
        unet["image_embed_dim"] = numpy.load(next((shards / "img_emb").glob("*.npy")), mmap_mode="r").shape[1]
    count = len(list(shards.glob("[0-9]*.tar")))
    config["data"].update(webdataset_base_url=f"{shards}/{{}}.tar", img_embeddings_url=f"{shards}/img_emb", end_shard=count - 1, num_workers=1,
                          splits={"train": 0.75, "val": 0.125, "test": 0.125})
    config["train"].update(epochs=1, n_sample_images=0)
    config["tracker"] = tracker(folder)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=5, threads=2)
    parser.add_argument("--only", nargs="+", choices=tuple(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--one-reference", nargs=2, type=pathlib.Path, help=argparse.SUPPRESS)  # config and mark
    arguments = parser.parse_args()
    if arguments.one_reference:
        return reference(*arguments.one_reference)
    medians = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        threads = {"OMP_NUM_THREADS": str(arguments.threads)}
        for name in arguments.only:
            config = prepare(arguments, name, folder)
            rounds = []
            for number in range(arguments.rounds + 1):
                mine = measure([arguments.binary, "--config", config, "--quiet"], folder / "trace.rank0", folder,
                               {**threads, "DALLE2_TRACE_SAMPLES": str(folder / "trace")})
                theirs = measure([sys.executable, __file__, "--one-reference", config, folder / "mark"], folder / "mark", folder, threads)
                if number > 0:
                    rounds.append((mine, theirs))
            ratios = {key: [theirs[key] / mine[key] for mine, theirs in rounds] for key in ("wall", "cpu", "peak")}
            for key, unit in (("wall", "s"), ("cpu", "s of processor time"), ("peak", "MiB")):
                print(f"{name}: ours {text_of([mine[key] for mine, _ in rounds])}, reference {text_of([theirs[key] for _, theirs in rounds])}"
                      f" {unit}; reference / ours (min / median / max) {text_of(ratios[key])}", flush=True)
            medians.append({key: statistics.median(values) for key, values in ratios.items()})
    for key, suffix in (("peak", ".memory"), ("cpu", ".cpu"), ("wall", "")):
        print(f"figure start.first_batch{suffix} = {geomean([row[key] for row in medians]):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
