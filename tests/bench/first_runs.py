#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a first run gives on folders of pictures: `init --minutes`, the run, `sample`, and one sheet of real and drawn pictures.

    scripts/bench.sh first_runs --out DIR FOLDER ... [--minutes 6] [--binary build/bin/dalle2-train] [--seed 0]

Prints for each folder the number of its pictures, of updates and of minutes. The sheet has two rows a folder: pictures of the folder, then
as many drawn ones. Needs Pillow.
"""
import json
import pathlib
import random
import subprocess
import time

from PIL import Image

from shared import parser_of

COLUMNS, SIDE = 16, 48


def main():
    parser = parser_of(__doc__, "dalle2-train")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--minutes", default="6")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()

    def call(*command):
        return subprocess.run([arguments.binary, *map(str, command)], check=True, stdout=subprocess.PIPE, text=True).stdout

    def square(path):
        picture = Image.open(path).convert("RGBA")
        ground = Image.new("RGBA", picture.size, "white")
        ground.alpha_composite(picture)
        short = min(picture.size)
        left, top = (picture.width - short) // 2, (picture.height - short) // 2
        return ground.convert("RGB").crop((left, top, left + short, top + short)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)

    arguments.out.mkdir(parents=True, exist_ok=True)
    sheet = Image.new("RGB", (COLUMNS * SIDE, (2 * SIDE + 8) * len(arguments.folders)), "white")
    for number, folder in enumerate(arguments.folders):
        out = arguments.out / folder.name
        config = arguments.out / f"{folder.name}.json"
        call("init", folder, "--kind", "decoder", "--minutes", arguments.minutes, "--out", config, "--overwrite")
        begin = time.monotonic()
        call("--config", config, "--set", f"/tracker/data_path={out}", "--quiet")
        minutes = (time.monotonic() - begin) / 60
        updates = max(json.loads(line).get("step", 0) for line in (out / "log.jsonl").read_text().splitlines())
        call("sample", "--checkpoint", out / "model.pth", "--num", COLUMNS, "--seed", arguments.seed, "--out", f"{out}_drawn", "--overwrite")
        pictures = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))
        rows = (random.Random(arguments.seed).sample(pictures, COLUMNS), [f"{out}_drawn/{each:04}.png" for each in range(COLUMNS)])
        for row, paths in enumerate(rows):
            for column, path in enumerate(paths):
                sheet.paste(square(path), (column * SIDE, number * (2 * SIDE + 8) + row * SIDE))
        sheet.save(arguments.out / "sheet.png")
        print(f"{folder.name}: {len(pictures)} pictures, {updates} updates in {minutes:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
