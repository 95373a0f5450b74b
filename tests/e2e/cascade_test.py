# SPDX-License-Identifier: MIT
"""A cascade of 16 and 32 pixels, trained for a minute or two: its second stage must sharpen the first."""
import json
import pathlib
import re
import struct
import zlib

import harness
from harness import EndToEnd, read_npy, run

STEPS = 400


def write_png(path, side, rgb):
    """8-bit RGB, `rgb` as bytes from the top left."""
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    rows = b"".join(b"\0" + rgb[y * side * 3:(y + 1) * side * 3] for y in range(side))
    pathlib.Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) +
                                   chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def enlarge_nearest(samples_npy, folder, factor):
    """What a cascade without a second stage would draw."""
    (n, channels, side, _), values = read_npy(samples_npy)
    folder.mkdir()
    for i in range(n):
        rgb = bytearray()
        for y in range(side * factor):
            for x in range(side * factor):
                for c in range(channels):
                    rgb.append(round(255 * values[((i * channels + c) * side + y // factor) * side + x // factor]))
        write_png(folder / f"{i:04}.png", side * factor, bytes(rgb))


class Cascade(EndToEnd):
    def score(self, drawn):
        done = run("shards", "score", "--drawn", drawn, "--heldout", "runs/cascade/shards/heldout",
                   "--grid", f"{drawn}.png", cwd=self.dir, check=0)
        print(drawn, done.stdout)
        return (float(re.search(r"asked for: ([0-9.]+)", done.stdout)[1]),
                {name: int(share) for name, share in re.findall(r"(\w+) (\d+)%", done.stdout)})

    def test_the_second_stage_draws_closer_to_the_truth_than_enlarging_the_first(self):
        run("shards", "demo", "--out", "runs/cascade/shards", "--num", 3200, "--image-size", 32, cwd=self.dir, check=0)
        config = json.loads((harness.ROOT / "configs/cascade.json").read_text())
        samples = STEPS * config["data"]["batch_size"]
        run("--config", harness.ROOT / "configs/cascade.json", "--set", f"/train/epoch_samples={samples}",
            "--set", "/train/epochs=1", "--set", f"/train/cosine_decay_max_steps={STEPS}",
            "--set", "/train/n_sample_images=0", "--set", "/data/shuffle_train=false",
            "--set", "/data/resample_train=true", cwd=self.dir, check=0)
        draw = ["sample", "--checkpoint", "runs/cascade/model.pth", "--batch-size", 64, "--image-embeds",
                "runs/cascade/shards/heldout/img_emb/img_emb_000000.npy"]
        run(*draw, "--stop-unet", 1, "--out", "first", cwd=self.dir, check=0)
        run(*draw, "--out", "both", cwd=self.dir, check=0)
        run(*draw, "--start-unet", 2, "--image", "first/samples.npy", "--out", "second", cwd=self.dir, check=0)
        enlarge_nearest(self.dir / "first/samples.npy", self.dir / "enlarged", 2)
        enlarged, _ = self.score("enlarged")
        both, right = self.score("both")
        second, _ = self.score("second")
        self.assertGreaterEqual(right["colour"], 75)
        self.assertLess(both, 0.93 * enlarged)
        self.assertLess(second, 0.93 * enlarged)


if __name__ == "__main__":
    harness.main()
