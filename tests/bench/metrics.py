#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""FID alone, FID, IS and KID together, and the distance of given features, ours against torchmetrics, in turns on one machine.

    scripts/bench.sh metrics [--count 1000] [--side 64] [--rounds 3] [--threads 2]

Both see the same pictures (smooth noise) in batches of 50 and the same synthetic weights of the Inception network, resized with antialiasing,
which is torchmetrics' way. `update` is the passes of the network, `compute` what follows from the features; torchmetrics passes the
pictures through the network once for each metric. Peaks are the largest resident memory of each process. The distance alone is that of
--count features of width 2048, three times a round, as what a covariance of fewer samples than features takes. Prints min, median and max
over the rounds. --only distance leaves the network out.
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

from decoder_step import peak_mib
from shared import ROOT, parser_of, spread

BATCH, SUBSET_SIZE = 50, 50
WHAT = ("fid", "fid,is,kid")


def run(command, threads):
    """What it printed last, and its largest resident memory in MiB."""
    peak, said = peak_mib(list(map(str, command)), stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    return json.loads(said.splitlines()[-1]), peak


def reference(what, pictures, threads):
    import torch
    import torch_fidelity.feature_extractor_inceptionv3 as module
    from safetensors.torch import load_file
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.inception import InceptionScore
    from torchmetrics.image.kid import KernelInceptionDistance
    sys.path.insert(0, str(ROOT / "scripts"))
    from export_inception import fill
    torch.set_num_threads(threads)
    module.load_state_dict_from_url = lambda *a, **k: {}
    module.FeatureExtractorInceptionV3.load_state_dict = lambda self, *a, **k: None
    metrics = {"FID": FrechetInceptionDistance()}
    if what != "fid":
        metrics |= {"IS": InceptionScore(), "KID": KernelInceptionDistance(subset_size=SUBSET_SIZE)}
    for metric in metrics.values():
        fill(metric.inception, 0)
    sets = load_file(pictures)
    begin = time.perf_counter()
    with torch.inference_mode():
        for first in range(0, len(sets["real"]), BATCH):
            real, generated = (sets[name][first:first + BATCH] for name in ("real", "generated"))
            for name, metric in metrics.items():
                if name == "IS":
                    metric.update(generated)
                else:
                    metric.update(real, real=True)
                    metric.update(generated, real=False)
    update = time.perf_counter() - begin
    begin = time.perf_counter()
    found = {name: metric.compute() for name, metric in metrics.items()}
    print(json.dumps({"update": update, "compute": time.perf_counter() - begin, "FID": found["FID"].item()}))


def reference_distance(features, threads):
    import torch
    from safetensors.torch import load_file
    from torchmetrics.image.fid import _compute_fid
    torch.set_num_threads(threads)
    sets = {name: rows.double() for name, rows in load_file(features).items()}
    seconds = []
    for _ in range(3):
        sums = [(rows.sum(0), rows.T @ rows, len(rows)) for rows in (sets["real"], sets["generated"])]  # update() has them
        begin = time.perf_counter()
        moments = []
        for total, outer, count in sums:
            mean = (total / count).unsqueeze(0)
            moments += [mean.squeeze(0), (outer - count * mean.T @ mean) / (count - 1)]
        found = _compute_fid(*moments).item()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "FID": found}))


def distances(binary, folder, count, rounds, threads):
    """The distance of features that are given."""
    import torch
    from safetensors.torch import save_file
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(2048, 2048, generator=generator) / 45
    features = {"real": torch.rand(count, 2048, generator=generator) @ mix, "generated": torch.rand(count, 2048, generator=generator) @ mix + 0.01}
    save_file(features, folder / "features.safetensors")
    ratios, apart = [], 0.0
    for number in range(rounds):
        mine, _ = run([binary, "distance", folder / "features.safetensors"], threads)
        theirs, _ = run([sys.executable, __file__, "--threads", threads, "--reference-distance", folder / "features.safetensors"], threads)
        ratios += [b / a for a, b in zip(mine["seconds"], theirs["seconds"])]
        apart = max(apart, abs(mine["FID"] / theirs["FID"] - 1))
        print(f"round {number + 1}, distance: ours {mine['seconds']}, torchmetrics {theirs['seconds']}, FID {mine['FID']:.6g} {theirs['FID']:.6g}", flush=True)
    print(f"distance of {count} features: torchmetrics / ours: {spread(ratios, '.4g')}, "
          f"relative difference at most {apart:.1e}")
    print(f"figure metrics.distance = {statistics.median(ratios):.1f}")


def make(folder, count, side):
    """The archive and the pictures, by the reference's Python."""
    subprocess.run([sys.executable, ROOT / "scripts/export_inception.py", "--synthetic", "0", "--out", folder / "inception.pt"], check=True)
    import torch
    from safetensors.torch import save_file
    generator = torch.Generator().manual_seed(0)
    sets = {}
    for name, coarse in (("real", 4), ("generated", 7)):
        noise = torch.rand(count, 3, coarse, coarse, generator=generator)
        sets[name] = (torch.nn.functional.interpolate(noise, (side, side), mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)
    save_file(sets, folder / "pictures.safetensors")


def main():
    parser = parser_of(__doc__, "bench_metrics", rounds=3, threads=2)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--only", choices=("distance",))
    parser.add_argument("--reference-of", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--reference-distance", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reference_of:
        reference(*arguments.reference_of, arguments.threads)
        return
    if arguments.reference_distance:
        reference_distance(arguments.reference_distance, arguments.threads)
        return
    with tempfile.TemporaryDirectory(prefix="dalle2-metrics-") as name:
        folder = pathlib.Path(name)
        distances(arguments.binary, folder, arguments.count, arguments.rounds, arguments.threads)
        if arguments.only:
            return
        make(folder, arguments.count, arguments.side)
        rows = {what: [] for what in WHAT}
        for number in range(arguments.rounds):
            for what in WHAT:
                mine, peak = run([arguments.binary, what, folder / "inception.pt", folder / "pictures.safetensors"], arguments.threads)
                theirs, their_peak = run([sys.executable, __file__, "--threads", arguments.threads, "--reference-of", what,
                                          folder / "pictures.safetensors"], arguments.threads)
                whole = [each["update"] + each["compute"] for each in (mine, theirs)]
                rows[what].append({"ours, s": whole[0], "torchmetrics, s": whole[1], "torchmetrics / ours": whole[1] / whole[0],
                                   "torchmetrics / ours, compute": theirs["compute"] / mine["compute"],
                                   "ours, peak MiB": peak, "torchmetrics, peak MiB": their_peak,
                                   "torchmetrics / ours, peak": their_peak / peak,
                                   "difference of FID, relative": abs(mine["FID"] / theirs["FID"] - 1)})
                print(f"round {number + 1}, {what}: " + ", ".join(f"{key} {value:.4g}" for key, value in rows[what][-1].items()), flush=True)
    for what in WHAT:
        for key in rows[what][0]:
            values = [row[key] for row in rows[what]]
            print(f"{what}: {key}: {spread(values, '.4g')}")
        print(f"figure metrics.{what.replace(',', '_')} = {statistics.median(row['torchmetrics / ours'] for row in rows[what]):.2f}")


if __name__ == "__main__":
    main()
