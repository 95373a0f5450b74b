# SPDX-License-Identifier: MIT
"""Checkpoints as the reference and torch.save() write them, small enough to be committed.

Each case is a .pth file and an .expected.safetensors file: the tensors by their path in the checkpoint,
and in the metadata under "json" the plain values by their path. Rebuilds equal bytes for equal seeds.

    python tests/parity/make_checkpoints.py --seed 0 --out tests/parity/fixtures
    python tests/parity/make_checkpoints.py --big --out /tmp/big    # a whole DecoderTrainer checkpoint
"""
import collections
import json
import warnings

warnings.filterwarnings("ignore")

import numpy as np
import torch
from packaging.version import Version
from safetensors.torch import save_file

from case_files import folder_and_options


def flatten(value, path, tensors, plain):
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().clone().contiguous()
    elif isinstance(value, dict):
        for key, child in value.items():
            flatten(child, f"{path}/{key}", tensors, plain)
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            flatten(child, f"{path}/{index}", tensors, plain)
    elif value is None or isinstance(value, (bool, int, float, str)):
        plain[path] = value


def save_case(folder, name, checkpoint, legacy=False):
    torch.save(checkpoint, folder / f"{name}.pth", _use_new_zipfile_serialization=not legacy)
    save_expected(folder, name, checkpoint)


def save_expected(folder, name, checkpoint):
    tensors, plain = {}, {}
    flatten(checkpoint, "", tensors, plain)
    save_file(tensors, folder / f"{name}.expected.safetensors", metadata={"json": json.dumps(plain, sort_keys=True)})


def every_kind():
    """Element types, views, ties and plain values."""
    base = torch.randn(4, 6)
    tied = torch.nn.Parameter(torch.randn(3))
    types = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.float8_e4m3fn,
             torch.float8_e5m2, torch.complex64)
    return collections.OrderedDict(
        types={str(kind).split(".")[1]: (torch.randn(2, 3) * 4).to(kind) for kind in types},
        base=base, row=base[1], column=base[:, 2], transposed=base.t(), tied=[tied, tied],
        scalar=torch.tensor(2.5), empty=torch.empty(0, 3), expanded=torch.ones(1).expand(4),
        none=None, yes=True, no=False, numbers=[0, 255, 256, 65536, -1, -2**31, 2**62, 1.5, 1e300],
        words={"umlaut": "äöü €", 7: "integer key"}, nothing={}, pair=(1, "two"), single=(3,), unit=())


def model_file():
    """save_type "model" of the reference: weights, a Version object and the config."""
    return collections.OrderedDict(
        model=torch.nn.Linear(3, 2).state_dict(), version=Version("1.15.6"), config={"dim": 8},
        size=torch.Size([2, 3]), half=torch.float16, raw=b"\x00\xffab", set={1},
        numpy=[np.float64(1.25), np.int64(-3), np.float32(0.5), np.bool_(True)],
        defaults=collections.defaultdict(dict, {"a": 1}), large=2**80)


def tiny_trainer():
    """A real DecoderTrainer, stripped to the first tensors of every part so that it stays small."""
    from dalle2_pytorch import Decoder, DecoderTrainer, Unet

    unet = Unet(dim=4, dim_mults=(1,), image_embed_dim=6, cond_dim=4, attn_dim_head=2, attn_heads=1,
                resnet_groups=1, cond_on_image_embeds=True)
    decoder = Decoder(unet, image_size=8, timesteps=4)
    trainer = DecoderTrainer(decoder, lr=3e-4, wd=1e-2, warmup_steps=4, cosine_decay_max_steps=8,
                             ema_update_after_step=0, ema_update_every=1)
    for _ in range(2):
        trainer(torch.rand(2, 3, 8, 8), image_embed=torch.randn(2, 6), unet_number=1)
        trainer.update(unet_number=1)
    return trainer


def trimmed(checkpoint, count=24):
    """The same structure with the first `count` entries of the weights, averages and moments."""
    first = lambda mapping: type(mapping)(list(mapping.items())[:count])
    checkpoint["model"] = first(checkpoint["model"])
    optim = checkpoint["optim0"]
    optim["state"] = first(optim["state"])
    ema = checkpoint["ema"]
    kept = [key for key in ema if "." not in key[2:]][:2] + [key for key in ema if "ema_model" in key][:count]
    checkpoint["ema"] = type(ema)((key, value) for key, value in ema.items() if key in kept)
    return checkpoint


def main():
    folder, options = folder_and_options("checkpoints", __doc__, flag=("--big", "the trainer's checkpoint as it is, too"))
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)
    save_case(folder, "kinds", every_kind())
    save_case(folder, "legacy", every_kind(), legacy=True)
    save_case(folder, "model", model_file())

    trainer = tiny_trainer()
    whole = folder / "trainer_whole.pth"
    trainer.save(whole, epoch=1, sample=64, next_task="train", samples_seen=64,
                 validation_losses=[torch.tensor(0.5)], config={"decoder": {"timesteps": 4}})
    checkpoint = torch.load(whole, weights_only=True)
    if options.big:
        save_expected(folder, "trainer_whole", checkpoint)
    else:
        whole.unlink()
    save_case(folder, "trainer", trimmed(checkpoint))


if __name__ == "__main__":
    main()
