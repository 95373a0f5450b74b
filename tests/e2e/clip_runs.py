# SPDX-License-Identifier: MIT
"""Configs of a small CLIP, for the tests and for the checks on a GPU."""
import harness

WIDTH, SIDE = 16, 16  # of embeddings; of pictures


def clip_config(shards, out, **sections):
    """A CLIP that trains in seconds on demo shards; `sections` add keys to its sections."""
    config = {
        "clip": {"embed_dim": WIDTH, "vision_cfg": {"layers": 1, "width": 16, "head_width": 8, "patch_size": 4, "image_size": SIDE},
                 "text_cfg": {"context_length": 20, "width": 16, "heads": 2, "layers": 1}, "tokenizer": {"train": 540}},
        "data": {"webdataset_base_url": f"{shards}/{{}}.tar", "end_shard": harness.demo_shard_count(shards) - 1, "batch_size": 16,
                 "num_workers": 1, "splits": {"train": 0.75, "val": 0.15, "test": 0.1}},
        "train": {"epochs": 2, "lr": 3e-3, "wd": 0.0, "device": "cpu", "log_every_n_updates": 1},
        "tracker": harness.tracker(out)}
    for section, keys in sections.items():
        config[section].update(keys)
    return config
