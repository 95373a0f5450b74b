#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training steps of a VQGAN-VAE, ours against muse-maskgit-pytorch, in turns on one machine.

    scripts/bench.sh vae [--binary build/bin/dalle2-train] [--steps 30] [--rounds 5] [--threads 2] [--side 128] [--batch 4]
        [--codebook-size 65536] [--only reconstruction|gan] [--penalty-every 1]

Both train the same network (lookup-free codes, an EMA each step) on the same folder of demo pictures. Side, batch and codebook are those of
the reference's own example; only `dim` is 32 where it has 256. `gan` is a step of both parts with
the perceptual loss of a VGG16 of synthetic weights: the reference is its VQGanVAETrainer. That computes the gradient penalty in every step,
whatever its `apply_grad_penalty_every` says, and so do we here; `--penalty-every 4` is what our program does without that key.
`reconstruction` is use_vgg_and_gan off, with which that trainer cannot be built: its loop is written out here, around the reference's
network, optimizer, average and data set. Both load their pictures. A round is one run of each; its figures are the median over its steps,
the first five left out, and the largest resident memory of the process. Prints min, median and max over the rounds.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

from decoder_step import peak_mib
from shared import ROOT, compared, make_demo, parser_of, report, tracker

VAE = {"dim": 32, "layers": 4}
SKIPPED = 5


def ours(arguments, folder, phase):
    gan = phase == "gan"
    config = {
        "vae": {**VAE, "codebook_size": arguments.codebook_size, "use_vgg_and_gan": gan},
        "data": {"folder": str(folder / "pictures"), "image_size": arguments.side, "batch_size": arguments.batch},
        "train": {"num_train_steps": arguments.steps, "device": "cpu", "vgg_path": str(folder / "vgg.pt") if gan else None,
                  "ema_update_after_step": 0, "save_results_every": 10**6, "save_model_every": 10**6, "log_every_n_updates": 1,
                  "validation_samples": arguments.batch, "apply_grad_penalty_every": arguments.penalty_every},
        "tracker": tracker(folder)}
    (folder / "config.json").write_text(json.dumps(config))
    log = folder / "out/log.jsonl"
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "latest.pth").unlink(missing_ok=True)
    peak = peak_mib([arguments.binary, "--config", folder / "config.json", "--quiet"], cwd=folder, stdout=subprocess.DEVNULL,
                    env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})[0]
    rates = [record["samples_per_second"] for record in map(json.loads, log.read_text().splitlines()) if "samples_per_second" in record]
    return arguments.batch / statistics.median(rates[SKIPPED:]), peak


def reference(arguments, folder, phase):
    import torch
    from torch import nn
    from ema_pytorch import EMA
    from muse_maskgit_pytorch import VQGanVAE, VQGanVAETrainer
    from muse_maskgit_pytorch.trainers import ImageDataset, cycle
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    times = []
    if phase == "gan":
        import torchvision
        sys.path.insert(0, str(ROOT / "scripts"))
        from export_inception import fill
        vgg = torchvision.models.vgg16(weights=None)
        fill(vgg, 0)
        vgg.classifier = nn.Sequential(*vgg.classifier[:-2])
        vae = VQGanVAE(**VAE, codebook_size=arguments.codebook_size, use_vgg_and_gan=True)
        results = folder / "theirs"
        shutil.rmtree(results, ignore_errors=True)
        trainer = VQGanVAETrainer(vae, folder=str(folder / "pictures"), num_train_steps=arguments.steps, batch_size=arguments.batch,
                                  image_size=arguments.side, save_results_every=10**6, save_model_every=10**6,
                                  results_folder=str(results), accelerate_kwargs={"cpu": True})
        # As a downloaded one, which comes at the first step: no part of what is trained, and not in the average's copy.
        object.__setattr__(trainer.vae, "_vgg", vgg.eval().requires_grad_(False))
        trainer.steps += 1  # the step 0 saves grids and models
        for _ in range(arguments.steps):
            begin = time.perf_counter()
            trainer.train_step()
            times.append(time.perf_counter() - begin)
        return times
    vae = VQGanVAE(**VAE, codebook_size=arguments.codebook_size, use_vgg_and_gan=False)
    optimizer = torch.optim.Adam(vae.parameters(), lr=3e-4)
    average = EMA(vae, update_after_step=0, update_every=1)
    data = cycle(torch.utils.data.DataLoader(ImageDataset(str(folder / "pictures"), arguments.side), batch_size=arguments.batch,
                                             shuffle=True))
    for _ in range(arguments.steps):
        begin = time.perf_counter()
        vae.train()
        loss = vae(next(data), return_loss=True)
        loss.backward()
        loss.item()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
        times.append(time.perf_counter() - begin)
    return times


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=5, threads=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--codebook-size", type=int, default=65536)
    parser.add_argument("--penalty-every", type=int, default=1, help="steps from one gradient penalty of ours to the next")
    parser.add_argument("--only", choices=("reconstruction", "gan"))
    parser.add_argument("--reference", nargs=2, help=argparse.SUPPRESS)  # a phase and the folder
    arguments = parser.parse_args()
    if arguments.reference:
        phase, folder = arguments.reference
        print(statistics.median(reference(arguments, pathlib.Path(folder), phase)[SKIPPED:]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_demo(arguments.binary, folder / "demo", 300, arguments.side)
        (folder / "pictures").mkdir()
        for path in (folder / "demo").glob("[0-9]*.tar"):
            with tarfile.open(path) as tar:
                for member in tar:
                    if member.name.endswith((".jpg", ".png")):
                        (folder / "pictures" / member.name).write_bytes(tar.extractfile(member).read())
        subprocess.run([sys.executable, ROOT / "scripts/export_vgg.py", "--synthetic", "0", "--out", folder / "vgg.pt"], check=True,
                       stdout=subprocess.DEVNULL)
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
        for phase in [arguments.only] if arguments.only else ["reconstruction", "gan"]:
            rows = []
            for number in range(arguments.rounds):
                mine = ours(arguments, folder, phase)
                command = [sys.executable, __file__, *sys.argv[1:], "--reference", phase, str(folder)]
                their_peak, said = peak_mib(command, stdout=subprocess.PIPE, env=environment)
                rows.append(compared(phase, number, "muse", "ms a step", mine, (float(said.split()[-1]), their_peak)))
            report(phase, f"vae.{phase}", "muse", "ms a step", rows)


if __name__ == "__main__":
    main()
