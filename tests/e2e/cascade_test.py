# SPDX-License-Identifier: MIT
"""A cascade of 16 and 32 pixels, trained for a minute or two: its second stage must sharpen small pictures."""
import json
import pathlib
import struct
import zlib

import harness
from harness import EndToEnd, read_npy, run, write_npy

STEPS = 450
SIDE = 32  # of the second stage
COUNT = 64


def read_png(path):
    """Width, height and bytes of an 8-bit RGB picture without interlacing."""
    content = pathlib.Path(path).read_bytes()
    at, data = 8, b""
    while at < len(content):
        length, kind = struct.unpack(">I4s", content[at:at + 8])
        chunk = content[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
            assert (depth, colour, interlaced) == (8, 2, 0), path
        data += chunk if kind == b"IDAT" else b""
        at += length + 12
    raw, stride, pixels = zlib.decompress(data), 3 * width, bytearray()
    above = bytearray(stride)
    for y in range(height):
        method, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride):
            a, b, c = (row[i - 3], above[i], above[i - 3]) if i >= 3 else (0, above[i], 0)
            nearest = min((a, b, c), key=lambda value: abs(a + b - c - value))  # Paeth; ties in this order
            row[i] = (row[i] + (0, a, b, (a + b) // 2, nearest)[method]) & 255
        pixels += row
        above = row
    return width, height, pixels


def pictures_asked_for(grid):
    """The left picture of each pair of a score's grid: eight pairs a row, enlarged twice, two pixels between."""
    width, _, pixels = read_png(grid)
    pitch = SIDE + 2
    images = []
    for i in range(COUNT):
        top, left = i // 8 * pitch + 2, 2 * (i % 8) * pitch + 2
        images.append([[[pixels[3 * (2 * (top + y) * width + 2 * (left + x)) + c] / 255 for x in range(SIDE)]
                        for y in range(SIDE)] for c in range(3)])
    return images


def halve(image):
    """Every second pixel: how a cascade makes the small pictures that it trains its second stage on."""
    return [[row[::2] for row in plane[::2]] for plane in image]


def flat(images):
    return [value for image in images for plane in image for row in plane for value in row]


def root_mean_square(a, b):
    return (sum((x - y) ** 2 for x, y in zip(a, b)) / len(a)) ** 0.5


class Cascade(EndToEnd):
    def test_the_second_stage_is_closer_to_the_truth_than_enlarging_its_input(self):
        run("shards", "demo", "--out", "runs/cascade/shards", "--num", 3200, "--image-size", SIDE, cwd=self.dir, check=0)
        config = json.loads((harness.ROOT / "configs/cascade.json").read_text())
        run("--config", harness.ROOT / "configs/cascade.json",
            "--set", f"/train/epoch_samples={STEPS * config['data']['batch_size']}", "--set", "/train/epochs=1",
            "--set", f"/train/cosine_decay_max_steps={STEPS}", "--set", "/train/n_sample_images=0",
            "--set", "/data/shuffle_train=false", "--set", "/data/resample_train=true", cwd=self.dir, check=0,
            timeout=1000)
        draw = ["sample", "--checkpoint", "runs/cascade/model.pth", "--batch-size", COUNT, "--image-embeds",
                "runs/cascade/shards/heldout/img_emb/img_emb_000000.npy"]
        run(*draw, "--out", "cascade", cwd=self.dir, check=0)
        score = ["shards", "score", "--drawn", "cascade", "--heldout", "runs/cascade/shards/heldout", "--grid"]
        run(*score, "grid.png", cwd=self.dir, check=0)
        self.assertIn("--grid grid.png: the file exists", run(*score, "grid.png", cwd=self.dir, check=2).stderr)
        run(*score, "grid.png", "--overwrite", cwd=self.dir, check=0)
        shard = self.dir / "runs/cascade/shards/000000.tar"
        before = shard.read_bytes()
        self.assertIn("expected the name of a picture", run(*score, shard, "--overwrite", cwd=self.dir, check=2).stderr)
        self.assertEqual(shard.read_bytes(), before)
        truth = pictures_asked_for(self.dir / "grid.png")
        small = [halve(image) for image in truth]
        write_npy(self.dir / "small.npy", (COUNT, 3, SIDE // 2, SIDE // 2), flat(small))
        run(*draw, "--start-unet", 2, "--image", "small.npy", "--out", "sharpened", cwd=self.dir, check=0)
        shape, sharpened = read_npy(self.dir / "sharpened/samples.npy")
        self.assertEqual(tuple(shape), (COUNT, 3, SIDE, SIDE))
        enlarged = [[[[row[x // 2] for x in range(SIDE)] for row in (plane[y // 2] for y in range(SIDE))]
                     for plane in image] for image in small]
        before, after = root_mean_square(flat(enlarged), flat(truth)), root_mean_square(sharpened, flat(truth))
        print(f"error against the truth: {before:.4f} enlarged, {after:.4f} by the second stage")
        self.assertLess(after, 0.75 * before)


if __name__ == "__main__":
    harness.main()
