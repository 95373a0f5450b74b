#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How the time of a decoder's training step grows with width, depth, pixels and batch, and what bounds it.

    scripts/bench.sh growth [--threads 1] [--steps 6] [--svg docs/images/growth.svg] [--json FILE]

Each series changes one size of tests/bench/step/a32.json. A point is a process of its own: the median of the processor time of a step, its
calls of the dispatcher, and its floating-point operations (FLOP), counted in the reference. Three shares explain a time:

- calls: operations times the time of one, measured on the smallest decoder, whose arithmetic takes almost none;
- arithmetic: FLOP at the rate of a product of matrices or of a 3x3 convolution, the faster one, measured in the same run;
- the rest: memory, and operations that are slower than that.

A series grows like size^p: prints p of the time and of the FLOP. `--json` keeps the points; `--from FILE` draws them again.
"""
import copy
import json
import math
import os
import pathlib
import sys
import tempfile

import decoder_steps
from shared import parser_of

BASE = "a32"
SERIES = {"width": ("channels of the first level", [8, 16, 32, 48, 64]), "depth": ("residual blocks of a level after its first", [1, 2, 3, 4]),
          "pixels": ("side of the picture", [16, 32, 64, 96]), "batch": ("samples of a batch", [1, 2, 4, 8, 16])}


def sized(series, size):
    """The base with another size."""
    config = copy.deepcopy(decoder_steps.DECODER.config(BASE))
    unet = config["decoder"]["unets"][0]
    if series == "width":
        unet.update(dim=size, cond_dim=size)
    elif series == "depth":
        unet["num_resnet_blocks"] = size
    elif series == "pixels":
        config["decoder"]["image_size"] = size
    elif series == "batch":
        config["data"]["batch_size"] = size
    return config


def smallest():
    config = sized("pixels", 8)
    config["decoder"]["unets"][0].update(dim=8, cond_dim=8)
    config["data"]["batch_size"] = 1
    return config


def gflop_of(config):
    """Of one step of the reference."""
    from torch.utils.flop_counter import FlopCounterMode
    reference = decoder_steps.DecoderReference(config, "no", compiled=False)
    counter = FlopCounterMode(display=False)
    with counter:
        reference.step()
    return counter.get_total_flops() * 1e-9


def measured(arguments, config, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    found = decoder_steps.run([arguments.binary, str(path), "no", str(arguments.steps), str(arguments.threads)], arguments.threads)
    return {"ms": found["cpu_ms"], "operations": found["operations"], "peak_mib": found["peak_mib"], "gflop": gflop_of(config)}


def measure(arguments):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        small = measured(arguments, smallest(), folder)
        peaks = decoder_steps.run([arguments.binary, "peaks", "no", str(arguments.threads)], arguments.threads)
        found = {"ms_of_call": small["ms"] / small["operations"], "gflops": max(peaks["gemm_gflops"], peaks["conv_gflops"]),
                 "threads": arguments.threads, "series": {}}
        known = {}
        for series, (_, sizes) in SERIES.items():
            points = found["series"][series] = []
            for size in sizes:
                config = sized(series, size)
                key = json.dumps(config, sort_keys=True)
                if key not in known:
                    known[key] = measured(arguments, config, folder)
                points.append({"size": size, **known[key]})
                print(f"{series} {size}: {points[-1]['ms']:.1f} ms", file=sys.stderr, flush=True)
    return found


def shares(found, point):
    """@return calls, arithmetic and the rest, of 1"""
    calls = min(1.0, point["operations"] * found["ms_of_call"] / point["ms"])
    arithmetic = min(1.0 - calls, point["gflop"] / found["gflops"] * 1e3 / point["ms"])
    return calls, arithmetic, 1.0 - calls - arithmetic


def power(points, key):
    """p of the least-squares line of log(key) over log(size)"""
    x, y = [math.log(point["size"]) for point in points], [math.log(point[key]) for point in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def table(found):
    print(f"one call {1e3 * found['ms_of_call']:.1f} us; fastest product or convolution {found['gflops']:.0f} GFLOP/s;"
          f" {found['threads']} thread(s)\n")
    print("| | size | ms | GFLOP | operations | tensors, MiB | calls % | arithmetic % | rest % |\n|---|---|---|---|---|---|---|---|---|")
    for series, points in found["series"].items():
        for point in points:
            calls, arithmetic, rest = (round(100 * share) for share in shares(found, point))
            print(f"| {series} | {point['size']} | {point['ms']:.1f} | {point['gflop']:.2f} | {point['operations']} | {point['peak_mib']:.0f} |"
                  f" {calls} | {arithmetic} | {rest} |")
    print()
    for series, points in found["series"].items():
        print(f"{series}: time grows like size^{power(points, 'ms'):.2f}, FLOP like size^{power(points, 'gflop'):.2f};"
              f" the two largest sizes {power(points[-2:], 'ms'):.2f} and {power(points[-2:], 'gflop'):.2f}")


WIDTH, HEIGHT, LEFT, TOP, BETWEEN = 210, 180, 44, 34, 58
COLOURS = (("calls", "#d95f02"), ("arithmetic", "#1b9e77"), ("rest", "#7570b3"))


def svg(found):
    """A panel of stacked bars for each series: where the time of a step goes, each bar as high as 100 %, its time above it."""
    total = LEFT + len(found["series"]) * (WIDTH + BETWEEN)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {HEIGHT + TOP + 62}" font-family="sans-serif" font-size="11">',
             f'<rect width="{total}" height="{HEIGHT + TOP + 62}" fill="white"/>']
    for number, (series, points) in enumerate(found["series"].items()):
        left = LEFT + number * (WIDTH + BETWEEN)
        parts.append(f'<text x="{left}" y="14" font-weight="bold">{series}</text>')
        for percent in (0, 50, 100):
            y = TOP + HEIGHT * (1 - percent / 100)
            parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                         f'<text x="{left - 6}" y="{y + 4}" text-anchor="end" fill="#555">{percent}</text>')
        slot = WIDTH / len(points)
        for place, point in enumerate(points):
            x, y = left + place * slot + 0.15 * slot, TOP + HEIGHT
            for (_, colour), share in zip(COLOURS, shares(found, point)):
                y -= HEIGHT * share
                parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.7 * slot:.1f}" height="{HEIGHT * share:.1f}" fill="{colour}"/>')
            middle = x + 0.35 * slot
            parts.append(f'<text x="{middle:.1f}" y="{TOP - 5}" text-anchor="middle">{point["ms"]:.0f}</text>'
                         f'<text x="{middle:.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{point["size"]}</text>')
        parts.append(f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle" fill="#555">{SERIES[series][0]}</text>')
    for number, (name, colour) in enumerate(COLOURS):
        x = LEFT + 130 * number
        parts.append(f'<rect x="{x}" y="{TOP + HEIGHT + 44}" width="11" height="11" fill="{colour}"/>'
                     f'<text x="{x + 17}" y="{TOP + HEIGHT + 54}">{name}, %</text>')
    parts.append(f'<text x="{LEFT + 400}" y="{TOP + HEIGHT + 54}" fill="#555">above each bar: processor milliseconds of a step</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = parser_of(__doc__, "bench_step", threads=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--svg", help="where the plot goes")
    parser.add_argument("--json", help="where the points go")
    parser.add_argument("--from", dest="points", help="points of an earlier run, by --json")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    found = json.loads(pathlib.Path(arguments.points).read_text()) if arguments.points else measure(arguments)
    table(found)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(found))
    if arguments.svg:
        pathlib.Path(arguments.svg).write_text(svg(found))
    print(f"figure growth.calls_at_base = {shares(found, next(p for p in found['series']['width'] if p['size'] == 32))[0]:.2f}")


if __name__ == "__main__":
    main()
