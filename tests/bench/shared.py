# SPDX-License-Identifier: MIT
"""What the benches share: options, demo shards, and how figures are printed. Python's standard library only."""
import argparse
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def parser_of(document, program, rounds=None, threads=None):
    """@param document of the bench @param program that it measures @param rounds, threads the defaults, where there are such options"""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/bin" / program)
    for option, default in (("--rounds", rounds), ("--threads", threads)):
        if default is not None:
            parser.add_argument(option, type=int, default=default)
    return parser


def make_demo(binary, folder, number, side):
    subprocess.run([binary, "shards", "demo", "--out", folder, "--num", str(number), "--image-size", str(side)], check=True,
                   stdout=subprocess.DEVNULL)


def tracker(folder, latest="latest.pth"):
    """The section of a run's config."""
    return {"data_path": f"{folder}/out", "overwrite_data_path": True, "log": {"log_type": "console"},
            "save": {"save_to": "local", "save_latest_to": f"{folder}/{latest}"}}


def spread(values, digits=".2f"):
    return f"min {min(values):{digits}} median {statistics.median(values):{digits}} max {max(values):{digits}}"


def compared(label, number, other, unit, mine, theirs):
    """Prints a round. @param mine, theirs seconds and peak memory @return the row for report()"""
    row = (mine[0], theirs[0], theirs[0] / mine[0], mine[1], theirs[1], theirs[1] / mine[1])
    print(f"{label}, round {number + 1}: ours {row[0] * 1e3:.2f} {unit}, {other} {row[1] * 1e3:.2f}, ratio {row[2]:.2f}; peak "
          f"{row[3]:.0f} and {row[4]:.0f} MiB", flush=True)
    return row


def report(label, figure, other, unit, rows):
    """Of the rows of all rounds."""
    for column, (what, scale) in enumerate(((f"ours, {unit}", 1e3), (f"{other}, {unit}", 1e3), (f"{other} / ours", 1),
                                            ("ours, peak MiB", 1), (f"{other}, peak MiB", 1), (f"{other} / ours, peak", 1))):
        print(f"{label}: {what}: {spread([row[column] * scale for row in rows])}")
    print(f"figure {figure} = {statistics.median(row[2] for row in rows):.2f}")
    print(f"figure {figure}.peak_memory = {statistics.median(row[5] for row in rows):.2f}")
