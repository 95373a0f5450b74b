#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How many sampling steps does a picture need? The quickstart's decoder, by each sampler and several numbers of steps.

    scripts/bench.sh samplers [--binary build/bin/dalle2-train] [--steps 50 25 17 10 6] [--rounds 3] [--threads 2]
                              [--folder FOLDER] [--model FILE]

Trains configs/quickstart.json once, unless a model of it is given with the folder that has its "shards". Each row draws the 64 held-out
combinations in each round with another seed, and has them read back: the shares that were right, of all rounds, the error against the
pictures asked for, and the processor time of a drawing.
"""
import pathlib
import resource
import statistics
import tempfile

from quickstart import ATTRIBUTES, Quickstart
from shared import parser_of


def row(quickstart, model, sampler, steps, rounds, out):
    shares, errors, seconds = [], [], []
    for seed in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        quickstart.draw(model, out, "--sampler", sampler, "--timesteps", steps, "--seed", str(seed))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        right, error = quickstart.score(out, out.with_suffix(".png"))
        shares.append(right)
        errors.append(error)
    return [statistics.mean(each) for each in zip(*shares)], statistics.mean(errors), statistics.median(seconds)


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=3, threads=2)
    parser.add_argument("--steps", nargs="+", default=["50", "25", "17", "10", "6"])
    parser.add_argument("--folder", type=pathlib.Path, help="where shards, model and drawings go, instead of a temporary folder")
    parser.add_argument("--model", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or pathlib.Path(temporary)).resolve()
        quickstart = Quickstart(arguments.binary.resolve(), folder, arguments.threads)
        model = arguments.model.resolve() if arguments.model else quickstart.train(folder, seed=0)
        print("sampler | steps | " + " | ".join(ATTRIBUTES) + " (% right) | error | processor time, s", flush=True)
        for steps in arguments.steps:
            for sampler in ("ddim", "dpmpp"):
                shares, error, seconds = row(quickstart, model, sampler, steps, arguments.rounds, folder / "drawn")
                print(f"{sampler} | {steps} | " + " | ".join(f"{share:.0f}" for share in shares) + f" | {error:.4f} | {seconds:.1f}",
                      flush=True)


if __name__ == "__main__":
    main()
