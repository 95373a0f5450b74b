# SPDX-License-Identifier: MIT
"""dalle2-pytorch judges the files of decoder runs: torch.load, and its own trainer's loader, strictly.

    python judge.py     reads a folder a line from stdin and prints for each, as one line of JSON, a list of its .pth files
                        or what is wrong with one

Needs an environment with tests/parity/requirements.txt.
"""
import contextlib
import json
import pathlib
import sys
import warnings

warnings.filterwarnings("ignore")

import torch
from dalle2_pytorch.train_configs import TrainDecoderConfig
from dalle2_pytorch.trainer import DecoderTrainer
from torch import nn


def decoder_trainer(checkpoint):
    """The reference's trainer for the config that a checkpoint carries; unets that were not trained are left out, as its
    own script does. @return trainer and decoder"""
    config = TrainDecoderConfig(**checkpoint["config"])
    decoder = config.decoder.create()
    for i, trained in enumerate(config.train.unet_training_mask or [True] * len(decoder.unets)):
        if not trained:
            decoder.unets[i] = nn.Identity()
    train = config.train
    trainer = DecoderTrainer(decoder, lr=train.lr, wd=train.wd, warmup_steps=train.warmup_steps,
                             max_grad_norm=train.max_grad_norm, use_ema=train.use_ema, ema_beta=train.ema_beta)
    return trainer, decoder


def load(path):
    content = torch.load(path, weights_only=True)
    trainer, decoder = decoder_trainer(content)
    if "optim0" in content:
        trainer.load(path, strict=True)
        assert trainer.steps.tolist() == content["steps"].tolist()
    else:
        decoder.load_state_dict(content["model"], strict=True)


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        files = sorted(map(str, pathlib.Path(line.strip()).rglob("*.pth")))
        answer = files
        for path in files:
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    load(path)
            except Exception as error:
                answer = f"{path}: {type(error).__name__}: {error}"
                break
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
