# SPDX-License-Identifier: MIT
"""Embeddings for priors that train in seconds, and the config that trains one on them."""
import math
import random

from harness import tracker, write_npy

DIM, ROWS, TEXT = 8, 60, 3


def unit(values):
    length = math.sqrt(sum(v * v for v in values))
    return [v / length for v in values]


def make_embeddings(folder, rows=ROWS):
    """Texts at random; an image is its text turned around, so that there is something to learn. Two files a kind."""
    draw = random.Random(1)
    texts = [unit([draw.gauss(0, 1) for _ in range(DIM)]) for _ in range(rows)]
    images = [unit([-v for v in reversed(text)]) for text in texts]
    for name, vectors in (("images", images), ("texts", texts)):
        (folder / name).mkdir()
        for part, (begin, end) in enumerate(((0, 25), (25, rows))):
            write_npy(folder / name / f"{name}_{part}.npy", (end - begin, DIM), [v for r in vectors[begin:end] for v in r])
    (folder / "encodings").mkdir()
    values = [draw.gauss(0, 1) for _ in range(rows * TEXT * DIM)]
    write_npy(folder / "encodings" / "0.npy", (rows, TEXT, DIM), values)


def prior_config(folder, out, **sections):
    config = {
        "prior": {"net": {"dim": DIM, "depth": 1, "dim_head": 8, "heads": 2, "max_text_len": 4}, "image_embed_dim": DIM,
                  "timesteps": 20, "sample_timesteps": 4, "cond_drop_prob": 0.1},
        "data": {"image_url": str(folder / "images"), "text_url": str(folder / "texts"),
                 "text_encodings_url": str(folder / "encodings"), "batch_size": 6,
                 "splits": {"train": 0.8, "val": 0.1, "test": 0.1}},
        "train": {"epochs": 3, "lr": 1e-2, "device": "cpu", "ema_beta": 0.9, "ema_update_after_step": 0,
                  "ema_update_every": 1, "eval_timesteps": [4, 20], "random_seed": 3},
        "tracker": tracker(out, save_best_to=f"{out}/best_{{epoch}}.pth"),
    }
    for section, keys in sections.items():
        config[section] = {**config[section], **keys}
    return config
