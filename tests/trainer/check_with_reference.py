# SPDX-License-Identifier: MIT
"""Checkpoints written by this program go on in dalle2_pytorch's DecoderTrainer and DiffusionPriorTrainer.

    python check_with_reference.py --binary build/bin/test_trainer

Needs an environment with dalle2_pytorch 1.15.6. The binary plays the runs of fixtures/trainer and
fixtures/prior_trainer and writes its checkpoints; the reference loads them strictly, trains on, and has to get the
same losses.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open

PARITY = pathlib.Path(__file__).resolve().parent.parent / "parity"
sys.path.insert(0, str(PARITY))
import make_prior_trainer  # noqa: E402
import make_trainer  # noqa: E402

TOLERANCE = 1e-4  # relative, of a loss: the tolerance of the run in the other direction


def restore_warmup(trainer):
    """The reference's warm-up does not save the rates it remembers, so that a run with a cosine resumes with
    wrong ones. Giving it the right ones leaves everything else to its own loading."""
    for i, dampener in enumerate(trainer.warmup_schedulers):
        if dampener is not None:
            dampener.lrs = list(getattr(trainer, f"sched{i}").get_last_lr())


def check(folder, name):
    fixture = safe_open(str(PARITY / "fixtures" / "trainer" / f"{name}.safetensors"), "pt")
    meta = json.loads(fixture.metadata()["json"])
    losses = json.loads((folder / f"{name}.json").read_text())
    trainer = make_trainer.make_trainer(meta["mask"])
    checkpoint = torch.load(folder / f"{name}.pth", map_location="cpu", weights_only=True)
    trainer.load_state_dict(checkpoint, strict=True)
    restore_warmup(trainer)
    worst = 0.0
    for i in range(meta["save_behind"] + 1, len(meta["events"])):
        event = meta["events"][i]
        prefix = f"{i}."
        inputs = {k[len(prefix):]: fixture.get_tensor(k) for k in fixture.keys() if k.startswith(prefix)}
        with make_trainer.given(inputs, event["max_batch_size"]):
            loss = trainer(inputs["images"], image_embed=inputs["image_embeds"], unet_number=event["unet"],
                           max_batch_size=event["max_batch_size"])
        if event["update"]:
            trainer.update(event["unet"])
        error = abs(loss - losses[i]) / abs(losses[i])
        worst = max(worst, error)
        print(f"{name} event {i}: reference {loss:.7f}, ours {losses[i]:.7f}, relative {error:.1e}")
        if not error <= TOLERANCE:
            sys.exit(f"{name}: the losses differ at event {i}")
    assert trainer.steps.tolist() == meta["steps"], (trainer.steps, meta["steps"])
    print(f"{name}: loaded strictly and trained on; largest relative difference {worst:.1e}")


def check_prior(folder, name):
    fixture = safe_open(str(PARITY / "fixtures" / "prior_trainer" / f"{name}.safetensors"), "pt")
    meta = json.loads(fixture.metadata()["json"])
    losses = json.loads((folder / f"{name}.json").read_text())
    trainer = make_prior_trainer.make_trainer(meta["train"])
    # The whole checkpoint is plain data: torch.load executes nothing.
    trainer.load(torch.load(folder / f"{name}.pth", map_location="cpu", weights_only=True), overwrite_lr=False)
    if trainer.warmup_scheduler is not None:  # as in restore_warmup
        trainer.warmup_scheduler.lrs = list(trainer.scheduler.get_last_lr())
    worst = 0.0
    for i in range(meta["save_behind"] + 1, len(meta["events"])):
        event, prefix = meta["events"][i], f"{i}."
        inputs = {k[len(prefix):]: fixture.get_tensor(k) for k in fixture.keys() if k.startswith(prefix)}
        with make_prior_trainer.given(inputs, event["max_batch_size"]):
            loss = make_prior_trainer.loss_of(trainer, inputs, event["max_batch_size"])
        if event["update"]:
            trainer.update()
        error = abs(loss - losses[i]) / abs(losses[i])
        worst = max(worst, error)
        print(f"prior {name} event {i}: reference {loss:.7f}, ours {losses[i]:.7f}, relative {error:.1e}")
        if not error <= TOLERANCE:
            sys.exit(f"prior {name}: the losses differ at event {i}")
    assert trainer.step.item() == meta["step"], (trainer.step, meta["step"])
    print(f"prior {name}: loaded strictly and trained on; largest relative difference {worst:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=pathlib.Path, required=True, help="test_trainer of the build")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, DALLE2_CHECK_DIR=folder)
        environment.pop("DALLE2_PARITY_DIR", None)
        subprocess.run([arguments.binary.resolve(), "[.write_for_reference]"], check=True, env=environment)
        for name in make_trainer.RUNS:
            check(pathlib.Path(folder), name)
        for name in make_prior_trainer.RUNS:
            check_prior(pathlib.Path(folder), name)


if __name__ == "__main__":
    main()
