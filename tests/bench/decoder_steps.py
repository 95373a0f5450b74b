#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training steps of decoders, ours against dalle2-pytorch's DecoderTrainer, in turns on one machine.

    scripts/bench.sh step [--only h64 a32 ...] [--precision no bf16] [--minutes 25] [--threads 1] [--compile] [--before PROGRAM]
    scripts/bench.sh step --account laion32 [--precision no]     where the time of our step goes, and the least it could take

The configs are tests/bench/step/*.json and the quickstart's. A step is forward, backward, clipping, AdamW and average of each unet, on
tensors in memory on both sides. The programs live side by side: ours, the reference in float32, in bf16 under autocast, with --compile
under torch.compile, with --before the bench_step of an earlier build, and ours once more: the control. One at a time works for a fraction
of a second, in an order that changes from round to round. Other programs only add time, so the smallest figure of all rounds counts:
processor time with one thread, wall time with more. Rounds end when control / ours has been within 5 % three times, or with this config's
share of --minutes; then its figures do not count. `peak` is the largest resident memory of a process, `operations` are calls of the
dispatcher and `tensors` the memory of the tensors that a step makes, at most at one time. `of peak` is the rate of the step in
floating-point operations, counted in the reference, against that of a product of matrices or a 3x3 convolution, whichever is faster.

The account is one table of rows that sum to the step; what they leave over or count twice must be within 5 %. GFLOP is the arithmetic
really done: of Winograd's algorithm, its products. MB is what operations read and write. `least` is the longer of both at rates measured
in the same run. `calls` is what lies outside operations that compute: views, autograd, our C++; its number is that of all calls.
"""
import argparse
import dataclasses
import itertools
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

from decoder_step import peak_mib
from shared import ROOT, parser_of

SKIPPED = 2
TURN_SECONDS = 0.4
CONTROL = 0.05  # the most that two copies of ours may differ by
STEADY_ROUNDS = 3


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
        if name == "quickstart":
            return ROOT / "configs/quickstart.json"
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


def serve_reference(kind, arguments):
    """As `bench_step CONFIG no|bf16 serve THREADS` does."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    name, precision, compiled = arguments.one_reference
    torch.set_num_threads(arguments.threads)
    reference = kind.reference(kind.config(name), precision, compiled == "compiled")
    for _ in range(SKIPPED):
        reference.step()
    print("{}", flush=True)
    for line in sys.stdin:
        end, wall, cpu = time.perf_counter() + float(line), [], []
        while not wall or time.perf_counter() < end:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            reference.step()
            wall.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
        print(json.dumps({"wall_ms": 1e3 * min(wall), "cpu_ms": 1e3 * min(cpu)}), flush=True)
    found = {"peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}  # without what the counters need
    if compiled != "compiled":
        counter = FlopCounterMode(display=False)
        with counter:
            reference.step()
        found["gflop"] = counter.get_total_flops() * 1e-9
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            reference.step()
        found["operations"] = sum(event.name.startswith("aten::") for event in profiler.events())
    print(json.dumps(found), flush=True)


class Worker:
    """A program that steps on request and keeps its fastest step."""

    def __init__(self, command, threads):
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        self.found = {}

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self.process.args))} ended with status {self.process.wait()}")
        return json.loads(line)

    def work(self):
        print(TURN_SECONDS, file=self.process.stdin, flush=True)
        self.found = {key: min(value, self.found.get(key, math.inf)) for key, value in self.answer().items()}

    def finish(self):
        self.process.stdin.close()
        rest = self.answer()
        self.process.stdout.close()
        _, _, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = 0
        return {"peak_rss_mib": usage.ru_maxrss / 1024, **self.found, **rest}


def run(command, threads):
    peak, said = peak_mib(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    return {**json.loads(said.strip().splitlines()[-1]), "peak_rss_mib": peak}


def time_key(arguments):
    return "cpu_ms" if arguments.threads == 1 else "wall_ms"


def is_steady(controls):
    return len(controls) >= STEADY_ROUNDS and all(abs(each - 1) <= CONTROL for each in controls[-STEADY_ROUNDS:])


def measure(kind, arguments, name, precision, seconds):
    """@return the figures of each program, and the control after each round"""
    def ours(binary):
        return Worker([binary, kind.path(name), precision, "serve", arguments.threads], arguments.threads)

    def theirs(their_precision, compiled="eager"):
        return Worker([sys.executable, kind.script, "--threads", arguments.threads, "--one-reference", name, their_precision, compiled],
                      arguments.threads)

    deadline = time.monotonic() + seconds
    workers = {"ours": ours(arguments.binary), "theirs": theirs("no"), "again": ours(arguments.binary)}
    if precision == "bf16":
        workers["theirs_bf16"] = theirs("bf16")
    if arguments.compile:
        workers["theirs_compiled"] = theirs(precision, "compiled")
    if arguments.before:
        workers["before"] = ours(arguments.before)
    for worker in workers.values():
        worker.answer()  # ready
    controls, key = [], time_key(arguments)
    for number in itertools.count():
        order = list(workers.values())
        for worker in order[number % len(order):] + order[:number % len(order)]:
            worker.work()
        controls.append(workers["again"].found[key] / workers["ours"].found[key])
        if is_steady(controls) or time.monotonic() > deadline:
            break
    found = {which: worker.finish() for which, worker in workers.items()}
    found["peaks"] = run([arguments.binary, "peaks", precision, str(arguments.threads)], arguments.threads)
    return found, controls


def ratios(rounds, which, key):
    return [found[which][key] / found["ours"][key] for found in rounds if which in found]


def text_of(values):
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}" if values else "-"


def report(arguments, name, precision, found, controls):
    """Prints the figures of one config. @return ratios of time and of memory, reference / ours; none if the control is too far off"""
    label, key = f"{name} {'fp32' if precision == 'no' else precision}", time_key(arguments)
    ours, theirs, peaks = found["ours"], found["theirs"], found["peaks"]
    control = f"control {controls[-1]:.2f} after {len(controls)} rounds"
    if not is_steady(controls):
        control += ": NOT WITHIN 5 %, does not count"
    rate, peak = theirs["gflop"] / ours[key] * 1e3, max(peaks["gemm_gflops"], peaks["conv_gflops"])
    print(f"{label}: ours {ours[key]:.1f} ms, peak {ours['peak_rss_mib']:.0f} MiB, tensors {ours['peak_mib']:.0f} MiB, operations"
          f" {ours['operations']}, allocations {ours['allocations']} (reference: {theirs[key]:.0f} ms, peak {theirs['peak_rss_mib']:.0f} MiB,"
          f" operations {theirs['operations']}); {theirs['gflop']:.1f} GFLOP, {rate:.0f} GFLOP/s; product {peaks['gemm_gflops']:.0f}, convolution"
          f" {peaks['conv_gflops']:.0f}: {100 * rate / peak:.0f} % of the faster; {control}")
    for title, which in (("reference", "theirs"), ("reference in bf16", "theirs_bf16"), ("reference compiled", "theirs_compiled"), ("before", "before")):
        if which in found:
            print(f"{label}: {title} / ours: {'processor' if key == 'cpu_ms' else 'wall'} time {found[which][key] / ours[key]:.2f},"
                  f" peak {found[which]['peak_rss_mib'] / ours['peak_rss_mib']:.2f}; {control}", flush=True)
    if not is_steady(controls):
        return {}
    return {f"{which}.{figure}": found[which][each] / ours[each] for which in ("theirs", "theirs_bf16", "theirs_compiled", "before", "again")
            if which in found for figure, each in (("time", key), ("memory", "peak_rss_mib"))}


def geomean(values):
    return math.exp(statistics.mean(map(math.log, values)))


def main(kind):
    parser = parser_of(kind.document, "bench_step", threads=1)
    parser.add_argument("--before", help="the bench_step of an earlier build")
    parser.add_argument("--only", nargs="+", default=list(kind.names))
    parser.add_argument("--precision", nargs="+", choices=("no", "bf16"), default=["no", "bf16"])
    parser.add_argument("--minutes", type=float, default=25, help="for all configs and precisions together")
    parser.add_argument("--steps", type=int, default=16, help="of --account")
    parser.add_argument("--compile", action="store_true", help="the reference under torch.compile, too: minutes for each config")
    parser.add_argument("--account")
    parser.add_argument("--one-reference", nargs=3, help=argparse.SUPPRESS)  # config, precision, eager or compiled
    arguments = parser.parse_args()
    if arguments.one_reference:
        return serve_reference(kind, arguments)
    if arguments.account:
        command = [str(arguments.binary), str(kind.path(arguments.account)), arguments.precision[0], str(arguments.steps), "1", "account"]
        os.execve(command[0], command, {**os.environ, "OMP_NUM_THREADS": "1"})
    tasks = list(itertools.product(arguments.only, arguments.precision))
    end = time.monotonic() + 60 * arguments.minutes
    found = {}
    for number, (name, precision) in enumerate(tasks):
        share = (end - time.monotonic()) / (len(tasks) - number)
        found[name, precision] = report(arguments, name, precision, *measure(kind, arguments, name, precision, share))
    for precision, label in (("no", "fp32"), ("bf16", "bf16")):
        rows = [row for (_, each), row in found.items() if each == precision and row]
        for key, name in (("theirs.time", ""), ("theirs_bf16.time", ".same_precision"), ("theirs_compiled.time", ".compiled"),
                          ("before.time", ".before"), ("again.time", ".control")):
            values = [row[key] for row in rows if key in row]
            if values:
                print(f"figure {kind.figure}.{label}{name} = {geomean(values):.2f}")
    # Of one precision, as in the table of docs/benchmarks.md: float32 if it was measured.
    memory = [row["theirs.memory"] for (_, precision), row in found.items() if row and precision == arguments.precision[0]]
    if memory:
        print(f"figure {kind.memory} = {geomean(memory):.2f}")
    missed = [f"{name} {precision}" for (name, precision), row in found.items() if not row]
    if missed:
        print("the control did not come within 5 %: " + ", ".join(missed))
    return 1 if missed else 0


DECODER = Kind(__file__, __doc__, "step", ("h64", "a32", "b32", "b64", "c16", "laion32", "laion32x8", "quickstart"), DecoderReference,
               "step.geomean", "step.geomean.memory")

if __name__ == "__main__":
    sys.exit(main(DECODER))
