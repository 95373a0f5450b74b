# SPDX-License-Identifier: MIT
"""What the reference's pydantic models make of configs: every default, and its lenient coercions.

Writes OUT/defaults.json (the dump of a minimal config, the signatures of Unet, Decoder and the
trainer), OUT/coercions.json (what becomes of a value in a field of each type) and OUT/betas.json
(the noise schedules). Needs dalle2-pytorch 1.15.6. The seed adds random values to the table.
"""
import inspect
import json
import random

import torch
from dalle2_pytorch.dalle2_pytorch import (Decoder, Unet, cosine_beta_schedule, linear_beta_schedule, quadratic_beta_schedule,
                                           sigmoid_beta_schedule)
from dalle2_pytorch.train_configs import AdapterConfig, TrainDecoderConfig, TrackerLoadConfig, TrackerLogConfig, TrackerSaveConfig
from dalle2_pytorch.trainer import DecoderTrainer
from ema_pytorch import EMA
from pydantic import ValidationError

from case_files import folder_and_options

MINIMAL = {
    "decoder": {"unets": [{"dim": 16, "dim_mults": [1, 2], "image_embed_dim": 8}], "image_sizes": [16]},
    "data": {"webdataset_base_url": "shards/{}.tar", "img_embeddings_url": "embeddings", "splits": {}},
    "train": {},
    "evaluate": {},
    "tracker": {"log": {}, "save": {"save_to": "local", "save_latest_to": "latest.pth"}},
}

# One field of each type the reference has.
FIELDS = {"int": "/train/epochs", "float": "/train/ema_beta", "bool": "/train/use_ema", "str": "/train/device",
          "optional_int": "/train/epoch_samples", "one_or_many_float": "/train/cond_scale",
          "one_or_many_bool": "/decoder/learned_variance", "list_int": "/decoder/unets/0/dim_mults",
          "optional_list_str": "/decoder/beta_schedule"}

SCALARS = [
    3, 1, 0, 8.0, 8.5, 1e6, 25e7, 0.5, 1e-4, True, False, None, "3", " 3 ", "3.0", "3.5", "1_000", "+3",
    "0003", "1e3", "0x10", "", "abc", "0.5", "1e-4", ".5", "5.", "+.5e1", "1_0.5", "on", "off", "yes", "No",
    "TRUE", "t", "F", "y", "n", "1", "0", "2", " true", 2, 1.0, 0.0, [], {}, "cosine",
]


def signature(cls, skip):
    parameters = inspect.signature(cls.__init__).parameters
    return {name: None if p.default is inspect.Parameter.empty else p.default for name, p in parameters.items()
            if name not in skip and p.kind is not inspect.Parameter.VAR_KEYWORD}


def defaults():
    return {
        "minimal": MINIMAL,
        "config": TrainDecoderConfig(**MINIMAL).model_dump(),
        "clip": AdapterConfig().model_dump(),
        "log": TrackerLogConfig().model_dump(),
        "load": TrackerLoadConfig().model_dump(),
        "save": TrackerSaveConfig().model_dump(),
        "unet_arguments": signature(Unet, ("self",)),
        "decoder_arguments": signature(Decoder, ("self", "unet", "vae")),
        "trainer_arguments": signature(DecoderTrainer, ("self", "decoder", "accelerator", "dataloaders", "use_ema")),
        "ema_arguments": signature(EMA, ("self", "model", "ema_model", "beta")),
    }


def get_at(config, pointer):
    for part in filter(None, pointer.split("/")):
        config = config[int(part) if part.isdigit() else part]
    return config


def coerce(pointer, value):
    config = json.loads(json.dumps(MINIMAL))
    place, _, last = pointer.rpartition("/")
    get_at(config, place)[last] = value
    try:
        return {"accepted": True, "result": get_at(TrainDecoderConfig(**config).model_dump(), pointer)}
    except ValidationError:
        return {"accepted": False}


def coercions(seed):
    rng = random.Random(seed)
    drawn = [rng.randint(2, 10**12), float(rng.randint(2, 10**9)), rng.random(), str(rng.randint(2, 10**12))]
    drawn += [f"{rng.random():.6f}", f"{rng.randint(1, 9)}e-{rng.randint(1, 9)}"]
    values = SCALARS + drawn
    table = []
    for name, pointer in FIELDS.items():
        for value in values + [[v] for v in values if not isinstance(v, (list, dict))]:
            table.append({"type": name, "pointer": pointer, "value": value, **coerce(pointer, value)})
    return table


def betas():
    schedules = {
        "cosine": cosine_beta_schedule,
        "linear": linear_beta_schedule,
        "quadratic": quadratic_beta_schedule,
        "jsd": lambda timesteps: 1.0 / torch.linspace(timesteps, 1, timesteps),
        "sigmoid": sigmoid_beta_schedule,
    }
    return {name: {n: make(n).tolist() for n in (1, 2, 10, 20, 50)} for name, make in schedules.items()}


def main():
    folder, arguments = folder_and_options("config_defaults", __doc__)
    rows = ",\n".join(" " + json.dumps(row) for row in coercions(arguments.seed))
    (folder / "coercions.json").write_text(f"[\n{rows}\n]\n")
    (folder / "defaults.json").write_text(json.dumps(defaults(), indent=1, default=str) + "\n")
    (folder / "betas.json").write_text(json.dumps(betas()) + "\n")


if __name__ == "__main__":
    main()
