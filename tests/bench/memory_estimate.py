#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The peak memory that a dry run estimates, beside that of the run.

    scripts/bench.sh estimate [--binary build/bin/dalle2-train] [--only a16 b64 ...] [--seconds 30] [--threads 1]

The configs are tests/bench/step/*.json, on demo shards of their size, whose embeddings have 32 values and which have no text encodings. A run
saves every six steps, so that it holds what is being saved, and ends by SIGTERM after `--seconds`.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from decoder_steps import DECODER
from shared import make_demo, parser_of

UNITS = {"MiB": 1, "GiB": 1024}


def prepare(arguments, name, folder):
    """@return the path of a config on demo shards"""
    config = DECODER.config(name)
    decoder, data = config["decoder"], config["data"]
    for unet in decoder["unets"]:
        unet["image_embed_dim"] = 32
        for key in ("text_embed_dim", "cond_on_text_encodings", "max_text_len"):
            unet.pop(key, None)
    data.pop("text_embeddings_url", None)
    side = decoder.get("image_size") or decoder["image_sizes"][-1]
    make_demo(arguments.binary, folder / "shards", 600, side)
    shards = sorted((folder / "shards").glob("*.tar"))
    data.update(webdataset_base_url=f"{folder}/shards/{{}}.tar", img_embeddings_url=f"{folder}/shards/img_emb", end_shard=len(shards) - 1,
                splits={"train": 0.75, "val": 0.125, "test": 0.125})
    config["train"].update(epochs=1000, n_sample_images=0, validation_samples=1, save_every_n_samples=6 * data["batch_size"])
    config["tracker"].update(data_path=f"{folder}/out", save={"save_to": "local", "save_latest_to": f"{folder}/latest.pth"})
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def estimate(arguments, config):
    done = subprocess.run([arguments.binary, "--config", config, "--dry-run"], check=True, capture_output=True, text=True)
    number, unit = re.search(r"peak memory of the process: about ([\d.]+) (\w+)", done.stdout).groups()
    return float(number) * UNITS[unit]


def measure(arguments, config):
    process = subprocess.Popen([arguments.binary, "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(arguments.seconds)
    process.send_signal(signal.SIGTERM)
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 75, status
    return usage.ru_maxrss / 1024


def main():
    parser = parser_of(__doc__, "dalle2-train", threads=1)
    parser.add_argument("--only", nargs="+", choices=DECODER.names, default=list(DECODER.names))
    parser.add_argument("--seconds", type=float, default=30)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    worst = 0.0
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            config = prepare(arguments, name, pathlib.Path(folder))
            expected, found = estimate(arguments, config), measure(arguments, config)
        worst = max(worst, abs(expected / found - 1))
        print(f"{name}: estimate {expected:.0f} MiB, run {found:.0f} MiB, estimate / run {expected / found:.2f}", flush=True)
    print(f"figure estimate.worst_error = {worst:.2f}")


if __name__ == "__main__":
    main()
