#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Resident memory of the loader: with ten million candidate shards against the few there are, and over time.

    scripts/bench.sh memory [--minutes 30]

Epoch after epoch over drawn shards of 100 JPEGs, mixed as in training. The first fifth of the time is left to the
allocator to settle; then the slope of a line through the memory tells how it grows.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from loader import ROOT, make_shards

BENCH = ROOT / "build/bin/bench_loader"


def soak(folder, seconds, candidates=0, nice=0):
    command = ["nice", "-n", str(nice), str(BENCH), "--shards", str(folder / "shards"), "--embeds", str(folder / "embeds"),
               "--workers", "2", "--soak", str(seconds), "--candidates", str(candidates)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def settled(records):
    return [record for record in records if record["seconds"] > records[-1]["seconds"] / 5]


def median_memory(records):
    return statistics.median(record["resident_mib"] for record in settled(records))


def growth_per_hour(records):
    late = settled(records)
    slope, _ = statistics.linear_regression([r["seconds"] for r in late], [r["resident_mib"] for r in late])
    return slope * 3600


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="of the run that must stay flat")
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--nice", type=int, default=0, help="of the measured program")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        make_shards(folder, 256, 100 * arguments.shards)
        few = [soak(folder, 20, nice=arguments.nice) for _ in range(3)]
        many = [soak(folder, 20, candidates=10_000_000, nice=arguments.nice) for _ in range(3)]
        long = soak(folder, arguments.minutes * 60, nice=arguments.nice)
    for name, runs in (("40 shards", few), ("10,000,000 candidates", many)):
        memory = sorted(median_memory(run) for run in runs)
        print(f"{name:24} resident MiB: min {memory[0]:.0f}  median {memory[1]:.0f}  max {memory[2]:.0f}")
    late = [record["resident_mib"] for record in settled(long)]
    print(f"{arguments.minutes:g} minutes, {long[-1]['epoch'] + 1} epochs, {long[-1]['images']:,} images: resident MiB "
          f"min {min(late):.0f}  median {statistics.median(late):.0f}  max {max(late):.0f}, "
          f"growth {growth_per_hour(long):+.1f} an hour")
    few_mib, many_mib = (statistics.median(map(median_memory, runs)) for runs in (few, many))
    print(f"figure loader.memory.ten_million_candidates_mib = {many_mib - few_mib:+.1f}")
    print(f"figure loader.memory.growth_mib_per_hour = {growth_per_hour(long):+.1f}")


if __name__ == "__main__":
    main()
