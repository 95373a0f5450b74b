#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Files through random chains of torchvision's transforms.

Writes <out>/augment/: the encoded pictures (files/), cases.json (the seed of torch, the transforms, the
size of the result) and all results one after another in expected.npy (uint8). Interpolations are named as
diffusers' resolve_interpolation_mode names them. In adjust.json and adjust.npy the same of ColorJitter and
RandomRotation, each before a flip that shows whether as many random numbers were drawn. Needs torch, torchvision,
diffusers, Pillow and numpy.
"""
import io
import itertools
import json

import numpy as np
import torch
from diffusers.training_utils import resolve_interpolation_mode
from PIL import Image
from torchvision import transforms as T

from case_files import folder_and_options

NAMES = ["bilinear", "bicubic", "box", "nearest", "nearest_exact", "hamming", "lanczos"]


def draw_file(rng):
    width, height = (int(v) for v in rng.integers(1, 70, 2))
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 90 * np.sin(rng.uniform(0, .7) * x + rng.uniform(0, .7) * y + c) for c in range(3)]
    pixels = np.clip(np.stack(planes, -1) + rng.normal(0, 15, (height, width, 3)), 0, 255).astype(np.uint8)
    image, out = Image.fromarray(pixels), io.BytesIO()
    kind = int(rng.integers(0, 5))
    if kind == 0:
        image.save(out, "PNG")
    elif kind == 1:
        image.convert("L").save(out, "JPEG", quality=int(rng.integers(30, 96)))
    else:
        image.save(out, "JPEG", quality=int(rng.integers(30, 96)), subsampling=int(rng.integers(0, 3)),
                   progressive=bool(rng.integers(0, 2)))
    return out.getvalue()


def draw_size(rng):
    return [int(v) for v in rng.integers(1, 33, int(rng.integers(1, 3)))]


def draw_step(rng, kind):
    if kind == "RandomHorizontalFlip":
        return {"kind": kind, "p": float(rng.choice([.25, .5, 1]))}
    step = {"kind": kind, "size": draw_size(rng)}
    if kind != "CenterCrop":
        step["interpolation"] = str(rng.choice(NAMES))
    if kind == "RandomResizedCrop":
        step["scale"] = [[.08, 1.0], [.5, 1.0], [.75, 1.0], [1.0, 1.0]][int(rng.integers(0, 4))]
        step["ratio"] = [[3 / 4, 4 / 3], [1.0, 1.0], [.5, 2.0]][int(rng.integers(0, 3))]
    return step


def draw_range(rng, middle, reach):
    """One number, or [low, high]."""
    if rng.integers(0, 2):
        return [round(float(rng.uniform(0, reach)), 3)]
    return sorted(round(float(middle + rng.uniform(-reach, reach)), 3) for _ in range(2))


def draw_adjustment(rng):
    if rng.integers(0, 2):
        mode = str(rng.choice(["nearest", "bilinear"]))
        fill = [int(v) for v in rng.integers(0, 256, int(rng.choice([1, 3])))]
        return {"kind": "RandomRotation", "degrees": draw_range(rng, 0, 180), "interpolation": mode, "fill": fill}
    middles = {"brightness": 1, "contrast": 1, "saturation": 1, "hue": 0}
    chosen = [str(k) for k in rng.permutation(list(middles))[:int(rng.integers(1, 5))]]
    return {"kind": "ColorJitter"} | {k: draw_range(rng, middles[k], .5 if k == "hue" else .9) for k in chosen}


def is_almost_a_quarter_turn(step, seed):
    """Whether whole rows of pixels may lie half-way between two of the picture's, so that a rounding decides between them."""
    if step["kind"] != "RandomRotation" or step["interpolation"] != "nearest":
        return False
    torch.manual_seed(seed)
    turn = T.RandomRotation(one_or_range(step["degrees"]))
    angle = turn.get_params(turn.degrees)
    return abs((angle + 45) % 90 - 45) < 1


def write_adjustments(rng, folder, count, kept):
    cases, expected, drawn = [], [], 0
    while drawn < count:
        image = Image.open(io.BytesIO(draw_file(rng))).convert("RGB")
        if min(image.size) < 8:
            continue
        steps = [draw_adjustment(rng), {"kind": "RandomHorizontalFlip", "p": .5}]
        seed = int(rng.integers(0, 2 ** 31))
        if is_almost_a_quarter_turn(steps[0], seed):
            continue
        drawn += 1
        if kept is not None and drawn - 1 not in kept:
            continue
        expected.append(np.asarray(image).reshape(-1))
        torch.manual_seed(seed)
        shown = transform(steps[1])(transform(steps[0])(image))
        cases.append({"seed": seed, "steps": steps, "width": image.size[0], "height": image.size[1]})
        expected.append(np.asarray(shown).reshape(-1))
    np.save(folder / "adjust.npy", np.concatenate(expected))
    (folder / "adjust.json").write_text(json.dumps(cases, indent=0) + "\n")


def one_or_range(values):
    return values[0] if len(values) == 1 else tuple(values)


def transform(step):
    size = step.get("size")
    if size is not None and len(size) == 1:
        size = size[0]  # a side: of a square, or the shorter one
    if step["kind"] == "RandomHorizontalFlip":
        return T.RandomHorizontalFlip(step["p"])
    if step["kind"] == "CenterCrop":
        return T.CenterCrop(size)
    if step["kind"] == "ColorJitter":
        return T.ColorJitter(**{key: one_or_range(value) for key, value in step.items() if key != "kind"})
    mode = resolve_interpolation_mode(step["interpolation"])
    if step["kind"] == "RandomRotation":
        return T.RandomRotation(one_or_range(step["degrees"]), interpolation=mode, fill=one_or_range(step["fill"]))
    if step["kind"] == "Resize":
        return T.Resize(size, interpolation=mode)
    return T.RandomResizedCrop(size, scale=step["scale"], ratio=step["ratio"], interpolation=mode)


# The cases that lie in the repository. Of the chains the first 14 have each interpolation in both transforms.
KEPT = {"chains": {*range(14), 16, 17, 18, 20, 25, 26, 27, 29, 34, 35, 36, 40, 41, 45, 48, 50, 59, 64},
        "adjustments": {0, 2, 4, 6, 7, 13, 14, 18, 21, 22, 25, 30, 32, 33, 38, 39}}


def main():
    folder, arguments = folder_and_options("augment", __doc__, cases=70, kept=KEPT)
    rng = np.random.default_rng(arguments.seed)
    (folder / "files").mkdir(parents=True, exist_ok=True)
    kinds = ["RandomResizedCrop", "RandomHorizontalFlip", "Resize", "CenterCrop"]
    kept = arguments.kept or {"chains": None, "adjustments": None}
    cases, expected, made = [], [], 0
    drawn = itertools.count()
    while made < arguments.cases:
        i = next(drawn)
        content = draw_file(rng)
        image = Image.open(io.BytesIO(content)).convert("RGB")
        chosen = [str(k) for k in rng.permutation(kinds)[:int(rng.integers(1, 5))]]
        if i < 2 * len(NAMES):
            chosen = [["RandomResizedCrop", "Resize"][i % 2]]
        steps = [draw_step(rng, kind) for kind in chosen]
        if i < 2 * len(NAMES):  # each name with each of the two
            steps[0]["interpolation"] = NAMES[i // 2]
        seed = int(rng.integers(0, 2 ** 31))
        torch.manual_seed(seed)
        for step in steps:
            image = transform(step)(image)
        if max(image.size) > 200:  # a line of pixels grows long
            continue
        made += 1
        if kept["chains"] is not None and made - 1 not in kept["chains"]:
            continue
        (folder / "files" / str(i)).write_bytes(content)
        cases.append({"file": str(i), "seed": seed, "steps": steps, "width": image.size[0], "height": image.size[1]})
        expected.append(np.asarray(image).reshape(-1))
    np.save(folder / "expected.npy", np.concatenate(expected))
    (folder / "cases.json").write_text(json.dumps(cases, indent=0) + "\n")
    write_adjustments(rng, folder, 40, kept["adjustments"])


if __name__ == "__main__":
    main()
