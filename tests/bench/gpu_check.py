#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What can be checked on a machine with a GPU, and what it measures there. Needs the program and Python's standard library.

    scripts/gpu_check.sh [--only NAME ...] [--list] [--seconds 520] [--device cuda] [--steps 60] [--large-batch 32] [--json FILE]
                         [--keep FOLDER]

The checks run in the order of --list, most telling first, until the time is used up; what is left is reported as not tried, and so is what
this machine cannot do (NCCL with one GPU, the reference where it is not installed). --only takes names of --list, or their beginnings
("parity", "resume"); what they need runs before them. --device cpu runs the same on a processor, over Gloo in place of NCCL, to try
the script itself. Closes with a table, and writes the same as JSON.

Ends with 0 if all checks that were tried hold, with 1 if one does not, with 2 if none can be tried. A failing check does not keep the
others from running.
"""
import argparse
import collections
import contextlib
import json
import pathlib
import sys
import tempfile
import time

import gpu_checks
import gpu_groups
import gpu_speed
from gpu_runs import NotTried, Runs

# Seconds on an H200 with 16 cores, as a guess until it has been measured. `after`: whose runs it compares with.
Check = collections.namedtuple("Check", "name seconds run after", defaults=((),))
PLAN = [
    Check("train", 8, gpu_checks.train),
    Check("parity.decoder", 8, gpu_checks.parity("decoder")),
    Check("parity.vae", 10, gpu_checks.parity("vae")),
    Check("parity.prior", 8, gpu_checks.parity("prior")),
    Check("parity.clip", 8, gpu_checks.parity("clip")),
    Check("resume.decoder", 14, gpu_checks.resume("decoder"), ("train",)),
    Check("group.one", 8, gpu_groups.one_rank, ("train",)),
    Check("group.two", 22, gpu_groups.two_ranks),
    Check("group.zero", 12, gpu_groups.two_ranks_sharded, ("group.two",)),
    Check("group.hang", 40, gpu_groups.hang_report),
    Check("group.killed", 20, gpu_groups.killed),
    Check("half.bf16", 8, gpu_checks.half("bf16", "decoder"), ("train",)),
    Check("half.fp16", 8, gpu_checks.half("fp16", "decoder"), ("train",)),
    Check("graph.decoder", 14, gpu_checks.graph("decoder")),
    Check("speed.small", 8, gpu_speed.small(graph=False)),
    Check("speed.small_graph", 8, gpu_speed.small(graph=True), ("speed.small",)),
    Check("speed.bf16", 15, gpu_speed.large("bf16")),
    Check("speed.bf16_graph", 20, gpu_speed.large("bf16", graph=True)),
    Check("speed.tf32", 15, gpu_speed.large("tf32")),
    Check("speed.no", 20, gpu_speed.large("no")),
    Check("reference.small", 20, gpu_speed.reference("no", compiled=False, name="small"), ("speed.small",)),
    Check("reference.bf16", 30, gpu_speed.reference("bf16", compiled=False), ("speed.bf16",)),
    Check("reference.bf16_compiled", 90, gpu_speed.reference("bf16", compiled=True), ("speed.bf16",)),
    Check("reference.no", 30, gpu_speed.reference("no", compiled=False), ("speed.no",)),
    Check("launches", 25, gpu_speed.launches),
    Check("graph.prior", 14, gpu_checks.graph("prior")),
    Check("parity.latent", 12, gpu_checks.parity("latent")),
    Check("parity.cascade", 8, gpu_checks.parity("cascade")),
    Check("parity.lora", 8, gpu_checks.parity("lora"), ("train",)),
    Check("parity.recomputation", 8, gpu_checks.parity("recomputation")),
    Check("parity.fmaps", 8, gpu_checks.parity("fmaps")),
    Check("parity.offload", 8, gpu_checks.parity("offload")),
    Check("parity.attention", 8, gpu_checks.parity("attention")),
    Check("parity.lookup_free", 10, gpu_checks.parity("lookup_free")),
    Check("resume.vae", 20, gpu_checks.resume("vae")),
    Check("resume.prior", 14, gpu_checks.resume("prior")),
    Check("resume.clip", 16, gpu_checks.resume("clip")),
    Check("half.vae_bf16", 14, gpu_checks.half("bf16", "vae")),
    Check("half.vae_fp16", 14, gpu_checks.half("fp16", "vae")),
    Check("half.clip_bf16", 12, gpu_checks.half("bf16", "clip")),
    Check("group.clip", 16, gpu_groups.two_ranks_of_a_clip),
    Check("group.vae", 12, gpu_groups.two_ranks_of_a_vae),
    Check("group.cut", 40, gpu_groups.cut),
    Check("samples", 25, gpu_checks.reference_samples),
    Check("draw", 8, gpu_checks.draw, ("train",)),
    Check("metrics", 12, gpu_checks.metrics, ("train",)),
]


def refuse(why):
    print(f"gpu_check.py: {why}", file=sys.stderr)
    sys.exit(2)


def chosen(only):
    """The checks asked for with what they need, in the order of the plan."""
    if not only:
        return PLAN
    wanted = {check.name for check in PLAN if any(check.name.startswith(name) for name in only)}
    unknown = [name for name in only if not any(check.name.startswith(name) for check in PLAN)]
    if unknown:
        refuse(f"no check is named {', '.join(unknown)}: --list names all")
    while more := {name for check in PLAN if check.name in wanted for name in check.after} - wanted:
        wanted |= more
    return [check for check in PLAN if check.name in wanted]


def run_plan(runs, plan, seconds, note=lambda rows: None):
    """@param note takes all rows after each check @return one row a check: name, state, seconds, figures or the reason"""
    rows, begin = [], time.monotonic()
    for check in plan:
        failed = [name for name in check.after if {row["name"]: row["state"] for row in rows}.get(name) != "ok"]
        started, row = time.monotonic(), {"name": check.name}
        if failed:
            row.update(state="not tried", reason=f"needs {failed[0]}")
        elif started - begin + check.seconds > seconds:
            row.update(state="not tried", reason=f"no time: about {check.seconds} s; --only {check.name}")
        else:
            try:
                row.update(state="ok", figures=check.run(runs))
            except NotTried as reason:
                row.update(state="not tried", reason=str(reason))
            except Exception as error:  # the next check may say more
                row.update(state="FAILED", reason=f"{type(error).__name__}: {str(error)[-3000:]}")
        row["seconds"] = round(time.monotonic() - started, 1)
        rows.append(row)
        print(line_of(row), flush=True)
        note(rows)
    return rows


def line_of(row):
    shown = lambda value: f"{value:.3g}" if isinstance(value, float) else str(value)
    said = row.get("reason") or ", ".join(f"{key} {shown(value)}" for key, value in row["figures"].items())
    return f"{row['state']:9} {row['name']:24} {row['seconds']:6.1f} s  {said}"


@contextlib.contextmanager
def folder_of_runs(kept):
    """@param kept where it stays, None: a temporary one"""
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
    else:
        with tempfile.TemporaryDirectory(prefix="dalle2-gpu-") as folder:
            yield pathlib.Path(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of --list, or their beginnings")
    parser.add_argument("--list", action="store_true", help="the checks, in their order, with the seconds that each may take")
    parser.add_argument("--seconds", type=float, default=520, help="no check begins that would be longer than this in all")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--steps", type=int, default=60, help="updates of each small run")
    parser.add_argument("--large-batch", type=int, default=32, help="samples of the large decoder; 0 leaves it out")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("gpu_check.json"), help="where the result goes")
    parser.add_argument("--keep", type=pathlib.Path, help="where the runs go (default: a folder that is removed)")
    arguments = parser.parse_args()
    plan = chosen(arguments.only)
    if arguments.list:
        for check in plan:
            print(f"{check.name:24} {check.seconds:3} s")
        print(f"{'all':24} {sum(check.seconds for check in plan)} s")
        return
    with folder_of_runs(arguments.keep) as folder:
        runs = Runs(arguments, folder)
        program = runs.program("--version").stdout.strip()
        if runs.on_gpu and "CUDA can be used" not in program:
            refuse(f"no GPU can be used here. --device cpu tries the script on a processor.\n{program}")
        print(time.strftime("%Y-%m-%d"), f"device {arguments.device}", *runs.machine, program, sep="\n", flush=True)
        about = {"date": time.strftime("%Y-%m-%d"), "device": arguments.device, "gpus": runs.machine, "program": program,
                 "steps": arguments.steps, "large_batch": arguments.large_batch}
        # After each check: whoever is cut off has what was found until then.
        rows = run_plan(runs, plan, arguments.seconds,
                        lambda rows: arguments.json.write_text(json.dumps({**about, "checks": rows}, indent=1) + "\n"))
    print(f"\n{'check':24} {'state':9} seconds")
    for row in rows:
        print(f"{row['name']:24} {row['state']:9} {row['seconds']:7.1f}")
    count = collections.Counter(row["state"] for row in rows)
    print(f"{count['ok']} hold, {count['FAILED']} failed, {count['not tried']} not tried; {arguments.json}")
    sys.exit(1 if count["FAILED"] else 0)


if __name__ == "__main__":
    main()
