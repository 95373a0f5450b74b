#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training steps of six decoders, ours against dalle2-pytorch's DecoderTrainer, in turns on one machine.

    scripts/bench.sh step [--only a16 b32 ...] [--precision no bf16] [--rounds 3] [--steps 8] [--threads 2] [--compile]
    scripts/bench.sh step --profile laion32 [--precision no]     where the time of our step goes, by operation

The configs are tests/bench/step/*.json. A step is forward, backward, clipping, AdamW and average of each unet, on tensors in memory on
both sides. A round is a run of ours, of the reference in float32, in bf16 under autocast, with --compile under torch.compile, and
of ours once more, each in a process of its own; its figures are the median over the steps. The two runs of ours give the control: their ratio would
be 1 on a quiet machine. `cpu` is the processor time of all threads, which programs beside it change less than `wall`: with --threads 1 ratios of it
can be believed on a machine that is shared. `peak` is the largest resident memory of the process, `operations` are calls of the
dispatcher and `tensors` the memory of the tensors that a step makes, at most at one time. `of peak` is the rate of the step in
floating-point operations, counted in the reference, against that of a product of matrices or a 3x3 convolution, whichever is
faster, measured in the same round.
"""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

from decoder_step import peak_mib
from shared import parser_of

SKIPPED = 2


@dataclasses.dataclass
class Kind:
    """A kind of model whose steps are compared."""
    script: str       # the file that is run, its documentation is the help
    document: str
    folder: str       # of its configs, beside this file
    names: tuple      # of its configs
    reference: type   # made of config, precision and whether compiled; has step()
    figure: str       # its name, before the precision
    memory: str       # the name of the memory's

    def config(self, name):
        return json.loads((self.path(name)).read_text())

    def path(self, name):
        return pathlib.Path(__file__).resolve().parent / self.folder / f"{name}.json"


class DecoderReference:
    """The reference's trainer and a batch."""

    def __init__(self, config, precision, compiled):
        import torch
        from accelerate import Accelerator
        from dalle2_pytorch import Decoder, DecoderTrainer, Unet
        torch.manual_seed(0)
        options = dict(config["decoder"])
        unets = [Unet(**unet) for unet in options.pop("unets")]
        first = config["decoder"]["unets"][0]
        side = options["image_size"] if "image_size" in options else options["image_sizes"][-1]
        if compiled:
            for unet in unets:
                unet.compile()
        accelerator = Accelerator(cpu=True, mixed_precision="bf16" if precision == "bf16" else "no")
        self.trainer = DecoderTrainer(Decoder(unet=tuple(unets), **options), lr=1e-3, wd=1e-2, use_ema=True, ema_beta=0.99,
                                      ema_update_after_step=0, ema_update_every=1, max_grad_norm=0.5, accelerator=accelerator)
        batch = config["data"]["batch_size"]
        self.images = torch.rand(batch, 3, side, side)
        self.inputs = {"image_embed": torch.randn(batch, first["image_embed_dim"])}
        if "text_embed_dim" in first:
            self.inputs["text_encodings"] = torch.randn(batch, 77, first["text_embed_dim"])
        self.numbers = range(1, len(unets) + 1)

    def step(self):
        for number in self.numbers:
            self.trainer(self.images, unet_number=number, **self.inputs)
            self.trainer.update(number)


def measure_reference(kind, arguments):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    name, precision, compiled = arguments.one_reference
    torch.set_num_threads(arguments.threads)
    reference = kind.reference(kind.config(name), precision, compiled == "compiled")
    wall, cpu = [], []
    for number in range(SKIPPED + arguments.steps):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        reference.step()
        if number >= SKIPPED:
            wall.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
    found = {"wall_ms": 1e3 * statistics.median(wall), "cpu_ms": 1e3 * statistics.median(cpu)}
    if compiled != "compiled":
        counter = FlopCounterMode(display=False)
        with counter:
            reference.step()
        found["gflop"] = counter.get_total_flops() * 1e-9
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            reference.step()
        found["operations"] = sum(event.name.startswith("aten::") for event in profiler.events())
    print(json.dumps(found))


def run(command, threads):
    peak, said = peak_mib(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    return {**json.loads(said.strip().splitlines()[-1]), "peak_rss_mib": peak}


def one_round(kind, arguments, name, precision):
    def ours():
        return run([arguments.binary, kind.path(name), precision, str(arguments.steps), str(arguments.threads)], arguments.threads)

    def theirs(their_precision, compiled="eager"):
        return run([sys.executable, kind.script, *sys.argv[1:], "--one-reference", name, their_precision, compiled], arguments.threads)

    found = {"ours": ours(), "theirs": theirs("no")}
    if precision == "bf16":
        found["theirs_bf16"] = theirs("bf16")
    if arguments.compile:
        found["theirs_compiled"] = theirs(precision, "compiled")
    found["again"] = ours()
    found["peaks"] = run([arguments.binary, "peaks", precision, str(arguments.threads)], arguments.threads)
    return found


def ratios(rounds, which, key):
    return [found[which][key] / found["ours"][key] for found in rounds if which in found]


def text_of(values):
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}" if values else "-"


def report(name, precision, rounds):
    """Prints the figures of one config. @return medians of time and of memory, reference / ours, and of time against the same precision"""
    label = f"{name} {'fp32' if precision == 'no' else precision}"
    ours, theirs, peaks = rounds[-1]["ours"], rounds[-1]["theirs"], rounds[-1]["peaks"]
    rate = [found["theirs"]["gflop"] / found["ours"]["wall_ms"] * 1e3 for found in rounds]
    print(f"{label}: ours {text_of([found['ours']['wall_ms'] for found in rounds])} ms, cpu {text_of([found['ours']['cpu_ms'] for found in rounds])} ms;"
          f" peak {ours['peak_rss_mib']:.0f} MiB, tensors {ours['peak_mib']:.0f} MiB, operations {ours['operations']}, allocations"
          f" {ours['allocations']} (reference: {theirs['wall_ms']:.0f} ms, cpu {theirs['cpu_ms']:.0f} ms, peak {theirs['peak_rss_mib']:.0f} MiB,"
          f" operations {theirs['operations']})")
    peak = max(peaks["gemm_gflops"], peaks["conv_gflops"])
    print(f"{label}: {theirs['gflop']:.1f} GFLOP, {statistics.median(rate):.0f} GFLOP/s; product {peaks['gemm_gflops']:.0f}, convolution"
          f" {peaks['conv_gflops']:.0f}: {100 * statistics.median(rate) / peak:.0f} % of the faster")
    for title, which in (("reference", "theirs"), ("reference in bf16", "theirs_bf16"), ("reference compiled", "theirs_compiled"), ("control", "again")):
        if rounds[0].get(which):
            print(f"{label}: {title} / ours (min / median / max): wall {text_of(ratios(rounds, which, 'wall_ms'))},"
                  f" cpu {text_of(ratios(rounds, which, 'cpu_ms'))}, peak {text_of(ratios(rounds, which, 'peak_rss_mib'))}", flush=True)
    return {which + "." + key: statistics.median(found) for which in ("theirs", "theirs_bf16", "theirs_compiled", "again")
            for key in ("wall_ms", "cpu_ms", "peak_rss_mib") if (found := ratios(rounds, which, key))}


def geomean(values):
    return math.exp(statistics.mean(map(math.log, values)))


def main(kind):
    parser = parser_of(kind.document, "bench_step", rounds=3, threads=2)
    parser.add_argument("--only", nargs="+", choices=kind.names, default=list(kind.names))
    parser.add_argument("--precision", nargs="+", choices=("no", "bf16"), default=["no", "bf16"])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="the reference under torch.compile, too: minutes for each config")
    parser.add_argument("--profile", choices=kind.names)
    parser.add_argument("--one-reference", nargs=3, help=argparse.SUPPRESS)  # config, precision, eager or compiled
    arguments = parser.parse_args()
    if arguments.one_reference:
        return measure_reference(kind, arguments)
    if arguments.profile:
        command = [arguments.binary, str(kind.path(arguments.profile)), arguments.precision[0], str(arguments.steps), "1", "profile"]
        os.execve(command[0], command, {**os.environ, "OMP_NUM_THREADS": "1"})
    medians = {}
    for name in arguments.only:
        for precision in arguments.precision:
            medians[name, precision] = report(name, precision, [one_round(kind, arguments, name, precision) for _ in range(arguments.rounds)])
    for precision, label in (("no", "fp32"), ("bf16", "bf16")):
        rows = [row for (_, each), row in medians.items() if each == precision]
        for key, name in (("theirs.wall_ms", ""), ("theirs.cpu_ms", ".cpu"), ("theirs_bf16.wall_ms", ".same_precision"),
                          ("theirs_bf16.cpu_ms", ".same_precision.cpu"), ("theirs_compiled.wall_ms", ".compiled"), ("again.wall_ms", ".control")):
            values = [row[key] for row in rows if key in row]
            if values:
                print(f"figure {kind.figure}.{label}{name} = {geomean(values):.2f}")
    # Of one precision, as in the table of docs/benchmarks.md: float32 if it was measured.
    memory_precision = "no" if any(precision == "no" for _, precision in medians) else "bf16"
    memory = [row["theirs.peak_rss_mib"] for (_, precision), row in medians.items() if precision == memory_precision]
    print(f"figure {kind.memory} = {geomean(memory):.2f}")


DECODER = Kind(__file__, __doc__, "step", ("a16", "a32", "b32", "b64", "c16", "laion32"), DecoderReference, "step.geomean",
               "step.geomean.memory")

if __name__ == "__main__":
    main(DECODER)
