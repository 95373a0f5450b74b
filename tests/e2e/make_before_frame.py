# SPDX-License-Identifier: MIT
"""Makes fixtures/before_frame: runs as a binary of an earlier version left them, stopped in the middle of an epoch, and
what the same runs come to without the stop. older_checkpoints_test.py lets the binary of today go on from them.

    python3 tests/e2e/make_before_frame.py --binary OLD/dalle2-train --out tests/e2e/fixtures/before_frame

The committed files were made by the version before all kinds of run had one frame; they are not to be made anew by a
newer one. For each kind of run the folder has
  config.json      the file it was started with; paths are relative to the working directory
  stopped/         its data_path behind the stop: checkpoint.pth packed by xz, without model.pth and latest.pth, a copy of it
  expected.json    of the run that was not stopped: each tensor of weights, averages and moments at its end (sha256,
                   largest magnitude, some of its values), its training losses behind the stop; what it trained on, and where
"""
import argparse
import array
import hashlib
import json
import lzma
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import harness
from harness import checkpoint_content, records, write_config
from prior_data import prior_config, make_embeddings

KINDS = ("decoder", "prior")
# What a record of training tells of the run, not of the clock.
RECORDED = ("step", "Epoch", "Sample", "Step", "Samples Seen", "Unet 0 Training Loss", "tracking/samples-seen",
            "tracking/training-l2")
LOSSES = ("Unet 0 Training Loss", "tracking/training-l2")
# Entries of a checkpoint by the reference's names: weights, averages, moments.
STATE = ("model.", "ema.", "ema_model.", "optim0.", "optimizer.")
VALUES = 4  # of each tensor
ROWS = 150  # of the prior's embeddings


def make_data(kind, folder):
    """What the run trains on, the same bytes each time. @return their sha256"""
    if kind == "decoder":
        harness.run("shards", "demo", "--out", "shards", "--num", 96, "--image-size", 16, "--seed", 5, cwd=folder, check=0)
        embeddings = sorted((folder / "shards/img_emb").rglob("*.npy"))
        for path in embeddings:  # they had ones in those days
            _, values = harness.read_npy(path)
            content = path.read_bytes()
            ones = array.array("f", (min(value, 1) for value in values)).tobytes()
            path.write_bytes(content[:len(content) - len(ones)] + ones)
        files = [*sorted((folder / "shards").glob("[0-9]*.tar")), *embeddings]
    else:
        make_embeddings(folder, rows=ROWS)
        files = sorted(folder.rglob("*.npy"))
    assert len(files) >= 5, files
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def make_config(kind, shards=None):
    if kind == "prior":
        return prior_config(
            pathlib.Path("."), "out", data={"batch_size": 2},
            train={"epochs": 3, "ema_update_every": 2, "warmup_steps": 20, "eval_timesteps": [4], "wd": 0.01})
    config = harness.tiny_config(
        shards, "out",
        decoder={"unets": [{"dim": 4, "dim_mults": [1], "image_embed_dim": 32, "cond_dim": 2, "num_resnet_blocks": 1,
                            "resnet_groups": 2, "num_image_tokens": 1, "num_time_tokens": 1, "attn_dim_head": 4,
                            "attn_heads": 2}]},
        data={"batch_size": 2, "num_workers": 2, "shuffle_train": True},
        train={"epochs": 3, "n_sample_images": 0, "warmup_steps": 20, "wd": 0.01})
    config["data"]["webdataset_base_url"] = "shards/{}.tar"
    config["data"]["img_embeddings_url"] = "shards/img_emb"
    return config


def described(dtype, content):
    """What expected.json has of a tensor: of float32 ones values too, evenly spread."""
    description = {"sha256": hashlib.sha256(content).hexdigest()}
    if dtype == "F32":
        values = array.array("f", content)
        description["largest"] = max(map(abs, values))
        description["values"] = [values[i * len(values) // VALUES] for i in range(VALUES)]
    return description


def described_state(tensors):
    return {name: described(*tensor) for name, tensor in sorted(tensors.items()) if name.startswith(STATE)}


def training_records(data_path):
    return [{key: record[key] for key in RECORDED if key in record}
            for record in records(data_path) if any(key in record for key in LOSSES)]


def machine():
    """What decides about the bits of a run on the CPU: its kind and the version of LibTorch."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    lines = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in text.splitlines() if ":" in line}
    version = subprocess.run([harness.BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    return {"cpu": lines.get("model name"), "flags": hashlib.sha256(lines.get("flags", "").encode()).hexdigest(),
            "libtorch": version.split("LibTorch ")[-1].strip(" )\n")}


def position(tree):
    """Samples of the epoch so far, and of the run."""
    own = tree["dalle2_train"]
    return own["row"] if "row" in own else tree["sample"], tree["samples_seen"]


def stop_in_the_second_epoch(folder):
    """Starts the run and sends SIGTERM behind the second record of its second epoch."""
    process = subprocess.Popen([harness.BINARY, "--config", "config.json"], cwd=folder, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    output, records_of_epoch = [], None
    for line in process.stdout:
        output.append(line)
        if "Starting epoch 1" in line:
            records_of_epoch = 0
        elif records_of_epoch is not None and (any(key in line for key in LOSSES) or re.match(r"step \d+  loss ", line)):
            records_of_epoch += 1
            if records_of_epoch == 2:
                process.send_signal(signal.SIGTERM)
    if process.wait() != 75:
        raise SystemExit("".join(output))


def make(kind, out):
    with tempfile.TemporaryDirectory(prefix="dalle2-before-") as scratch:
        folder = pathlib.Path(scratch)
        data = make_data(kind, folder)
        config = make_config(kind, folder / "shards")
        write_config(folder / "config.json", config)
        harness.run("--config", "config.json", cwd=folder, check=0)
        shutil.move(folder / "out", folder / "whole")
        tensors, tree = checkpoint_content("whole/checkpoint.pth", folder)
        stop_in_the_second_epoch(folder)
        stopped = checkpoint_content("out/checkpoint.pth", folder)[1]
        sample, seen = position(stopped)
        whole_epoch = tree["samples_seen"] // 3
        assert 0 < sample < whole_epoch and seen == whole_epoch + sample, (sample, seen, whole_epoch)
        before = training_records(folder / "out")
        behind = training_records(folder / "whole")
        assert behind[:len(before)] == before and len(behind) > len(before) > 0
        behind = behind[len(before):]
        expected = {"samples_seen": tree["samples_seen"], "stopped_at": sample, "data": data, "machine": machine(),
                    "records": behind, "tensors": described_state(tensors)}
        shutil.rmtree(out / kind, ignore_errors=True)
        shutil.copytree(folder / "out", out / kind / "stopped",
                        ignore=shutil.ignore_patterns("*.pth", "images"))
        checkpoint = (folder / "out/checkpoint.pth").read_bytes()
        (out / kind / "stopped/checkpoint.pth.xz").write_bytes(lzma.compress(checkpoint, preset=9))
        write_config(out / kind / "config.json", config)
        (out / kind / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{kind}: stopped at sample {sample} of {whole_epoch}, {len(behind)} records behind it")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    harness.BINARY = str(arguments.binary.resolve())
    for kind in KINDS:
        make(kind, arguments.out)


if __name__ == "__main__":
    main()
