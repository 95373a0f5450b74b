#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The quickstart's decoder, trained from several seeds: does it draw what it is asked for, whatever the seed?

    scripts/bench.sh quickstart [--binary build/bin/dalle2-train] [--seeds 0 1 2 3 4] [--threads 2] [--beside 1] [--grid FOLDER]

Each seed trains configs/quickstart.json from its beginning on the same demo shards, draws the 64 held-out combinations as
scripts/quickstart.sh does, and has them read back. --beside trains so many at once, which is quicker but makes the times those of a
busy machine. Prints a row a seed, and the least share of shapes that were right.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import tempfile
import time

from shared import ROOT, parser_of

ATTRIBUTES = ("size", "ground", "colour", "shape", "place")


class Quickstart:
    """The program, and a folder with the quickstart's demo shards."""
    def __init__(self, binary, folder, threads):
        self.binary, self.folder, self.environment = binary, folder, {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if not (folder / "shards").exists():
            self.call("shards", "demo", "--out", folder / "shards", "--num", "6000", "--image-size", "32")

    def call(self, *command):
        done = subprocess.run([self.binary, *command], cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}")
        return done.stdout

    def train(self, run, seed):
        """@return the model file"""
        self.call("--config", ROOT / "configs/quickstart.json", "--quiet", *(f"--set=/{key}={value}" for key, value in {
            "seed": seed, "data/webdataset_base_url": f'"{self.folder}/shards/{{}}.tar"',
            "data/img_embeddings_url": f'"{self.folder}/shards/img_emb"', "tracker/data_path": f'"{run}/tracker"',
            "tracker/load/file_path": f'"{run}/latest.pth"', "tracker/save/0/save_latest_to": f'"{run}/latest.pth"',
            "tracker/save/1/save_latest_to": f'"{run}/model.pth"'}.items()))
        return run / "model.pth"

    def draw(self, model, out, *more):
        self.call("sample", "--checkpoint", model, "--image-embeds", self.folder / "shards/heldout/img_emb/img_emb_000000.npy",
                  "--cond-scale", "1.5", "--batch-size", "32", "--out", out, "--overwrite", *more)

    def score(self, drawn, grid):
        """Shares of ATTRIBUTES that were right, in per cent, and the error against the pictures asked for."""
        said = self.call("shards", "score", "--drawn", drawn, "--heldout", self.folder / "shards/heldout", "--grid", grid, "--overwrite")
        shares = dict(re.findall(r"(size|ground|colour|shape|place) (\d+)%", said))
        return [int(shares[key]) for key in ATTRIBUTES], float(re.search(r"asked for: ([\d.]+)", said)[1])


def train(arguments, quickstart, seed):
    """Seconds of training, and the shares of ATTRIBUTES that were right."""
    run = quickstart.folder / str(seed)
    run.mkdir()
    begin = time.monotonic()
    model = quickstart.train(run, seed)
    seconds = time.monotonic() - begin
    quickstart.draw(model, run / "drawn")
    return seconds, quickstart.score(run / "drawn", (arguments.grid or run) / f"quickstart-{seed}.png")[0]


def main():
    parser = parser_of(__doc__, "dalle2-train", threads=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--beside", type=int, default=1)
    parser.add_argument("--grid", type=pathlib.Path, help="folder for the pictures of what was asked for and drawn")
    arguments = parser.parse_args()
    arguments.binary = arguments.binary.resolve()
    if arguments.grid:
        arguments.grid.mkdir(parents=True, exist_ok=True)
        arguments.grid = arguments.grid.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        quickstart = Quickstart(arguments.binary, folder, arguments.threads)
        print("seed | training, s | size | ground | colour | shape | place (% right of 64)", flush=True)
        least = 100
        with concurrent.futures.ThreadPoolExecutor(arguments.beside) as pool:
            trained = pool.map(lambda seed: train(arguments, quickstart, seed), arguments.seeds)
            for seed, (seconds, shares) in zip(arguments.seeds, trained):
                print(f"{seed} | {seconds:.0f} | " + " | ".join(map(str, shares)), flush=True)
                least = min(least, shares[3])
    print(f"figure quickstart.least_shapes_right = {least}")


if __name__ == "__main__":
    main()
