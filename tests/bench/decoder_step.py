#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A training step of the decoder, ours against dalle2-pytorch's DecoderTrainer, in turns on one machine.

    scripts/bench.sh run [--binary build/bin/dalle2-train] [--config tests/bench/step.json] [--steps 40] [--rounds 5]
        [--threads 2] [--ranks 1 [2 ...]]

Both train the first unet of the config on the same demo shards and batch size. Ours is timed whole (loading, step, average, log), the reference
on tensors in memory (step and average only). A round is one run of each, in turns; its figures are the median over its steps, the
first five left out, and the largest resident memory of the process (ours saves at the end, with async_save; the reference's never).
With --ranks several processes train together, each with a batch of its own and the threads given, over Gloo: ours started by
--nproc-per-node, the reference by torchrun, its decoder in DistributedDataParallel as its own script has it. The memory is then that of
the largest process. Several numbers of processes are taken in turns, too. Prints min, median and max over the rounds, and of the ratios.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from shared import ROOT, compared, make_demo, parser_of, report, spread, tracker


def peak_mib(command, **options):
    """Runs it. Returns its largest resident memory and, if it was piped, its output."""
    process = subprocess.Popen(command, **options)
    output = process.stdout.read().decode() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{command[0]} ended with status {status}")
    process.returncode = 0
    return usage.ru_maxrss / 1024, output


def ours(arguments, ranks, folder, config):
    samples = arguments.steps * config["data"]["batch_size"] * ranks
    peak = peak_mib([arguments.binary, "--config", folder / "config.json", "--quiet", "--set", f"/train/epoch_samples={samples}",
                     *(["--nproc-per-node", str(ranks)] if ranks > 1 else [])],
                    cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})[0]
    records = [json.loads(line) for line in (folder / "out/log.jsonl").read_text().splitlines()]
    (folder / "out/log.jsonl").unlink()
    rates = [r["Samples per second"] for r in records if "Samples per second" in r and r["Step"] >= 5]
    return config["data"]["batch_size"] * ranks / statistics.median(rates), peak


def prepare(arguments, folder):
    """Demo shards, and the config of a run on them that logs every step, as config.json. @return the config"""
    config = json.loads(pathlib.Path(arguments.config).read_text())
    make_demo(arguments.binary, folder / "shards", 3000, config["decoder"]["image_size"])
    config["data"].update(webdataset_base_url=f"{folder}/shards/{{}}.tar", img_embeddings_url=f"{folder}/shards/img_emb")
    config["data"]["splits"] = {"train": 0.75, "val": 0.125, "test": 0.125}  # of the shards of each process
    config["train"].update(epochs=1, n_sample_images=0, validation_samples=1, log_every_n_updates=1)
    config["tracker"] = tracker(folder, "out/latest.pth")
    (folder / "config.json").write_text(json.dumps(config))
    return config


def reference(arguments, config):
    import torch
    from dalle2_pytorch import Decoder, DecoderTrainer, Unet
    from accelerate import Accelerator, DistributedDataParallelKwargs
    torch.manual_seed(0)
    on_cpu = arguments.device == "cpu"
    handlers = [DistributedDataParallelKwargs(find_unused_parameters=True, static_graph=True)]
    accelerator = Accelerator(cpu=on_cpu, mixed_precision="bf16" if arguments.precision == "bf16" else "no",
                              kwargs_handlers=handlers if int(os.environ.get("WORLD_SIZE", "1")) > 1 else [])
    torch.set_float32_matmul_precision("highest" if arguments.precision == "no" else "high")
    options = dict(config["decoder"])
    unets = [Unet(**unet) for unet in options.pop("unets")]
    if arguments.compile:
        for unet in unets:
            unet.compile()
    trainer = DecoderTrainer(Decoder(unet=tuple(unets), **options), lr=1e-3, wd=1e-2, use_ema=True, ema_beta=0.99,
                             ema_update_after_step=0, ema_update_every=1, max_grad_norm=0.5, accelerator=accelerator)
    batch, side = config["data"]["batch_size"], config["decoder"]["image_size"]
    images, embeds = torch.rand(batch, 3, side, side), torch.randn(batch, config["decoder"]["unets"][0]["image_embed_dim"])
    images, embeds = images.to(arguments.device), embeds.to(arguments.device)
    times = []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        trainer(images, image_embed=embeds, unet_number=1)
        trainer.update(1)
        if not on_cpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:])


def one_round(arguments, number, ranks, folder, config):
    mine = ours(arguments, ranks, folder, config)
    python = [sys.executable] if ranks == 1 else [
        pathlib.Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node", str(ranks)]
    their_peak, said = peak_mib([*python, __file__, *sys.argv[1:], "--one-reference-round"], stdout=subprocess.PIPE,
                                env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})
    return compared(f"processes {ranks}", number, "reference", "ms a step", mine, (float(said.split()[-1]), their_peak))


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=5, threads=2)
    parser.add_argument("--config", default=str(ROOT / "tests/bench/step.json"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--one-reference-round", action="store_true", help=argparse.SUPPRESS)
    # Of the reference's round alone; tests/bench/gpu_speed.py asks for one.
    parser.add_argument("--device", default="cpu", help=argparse.SUPPRESS)
    parser.add_argument("--precision", choices=("no", "tf32", "bf16"), default="no", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one_reference_round:
        import torch
        torch.set_num_threads(arguments.threads)
        print(reference(arguments, json.loads(pathlib.Path(arguments.config).read_text())))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = prepare(arguments, folder)
        rows = {ranks: [] for ranks in arguments.ranks}
        for number in range(arguments.rounds):
            for ranks in arguments.ranks:
                rows[ranks].append(one_round(arguments, number, ranks, folder, config))
    for ranks in arguments.ranks:
        name = "decoder" if ranks == 1 else f"decoder.ranks{ranks}"
        report(f"processes {ranks}", f"step.{name}", "reference", "ms a step", rows[ranks])
    first = arguments.ranks[0]
    for ranks in arguments.ranks[1:]:
        ratios = [row[2] / before[2] for row, before in zip(rows[ranks], rows[first])]
        print(f"ratio with {ranks} processes / ratio with {first}, round by round: {spread(ratios)}")


if __name__ == "__main__":
    main()
