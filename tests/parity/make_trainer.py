# SPDX-License-Identifier: MIT
"""Runs of dalle2_pytorch's DecoderTrainer on a tiny decoder, everything random recorded: losses, rates,
weights, averages, and the checkpoints it writes in the middle.

    python make_trainer.py --out fixtures [--seed 0]      writes fixtures/trainer/{cascade,masked}.*

Adam divides a gradient by its size, so a gradient that cancels to almost nothing turns a rounding into a step of any direction. A run with
such a weight is drawn anew.

check_with_reference.py imports this file for its decoder, its trainer and its way to play a run.
"""
import json
import random
import warnings

warnings.filterwarnings("ignore")

import torch
from torch import nn

import dalle2_pytorch.dalle2_pytorch as D
from dalle2_pytorch.train_configs import DecoderConfig
from dalle2_pytorch.trainer import DecoderTrainer

from case_files import folder_and_options, write_case
from make_prior import patched
from waves import fill, nudge

UNET = dict(dim=4, dim_mults=[1], cond_dim=4, image_embed_dim=8, attn_heads=1, attn_dim_head=4, resnet_groups=2,
            num_resnet_blocks=1, init_cross_embed_kernel_sizes=[3, 5])
CONFIG = {
    "decoder": {"unets": [UNET, UNET], "image_sizes": [8, 16], "channels": 3, "timesteps": 40,
                "learned_variance": [True, False], "image_cond_drop_prob": 0.3, "text_cond_drop_prob": 0.0},
    "data": {"webdataset_base_url": "unused/{}.tar", "img_embeddings_url": "unused", "num_workers": 1,
             "batch_size": 3, "start_shard": 0, "end_shard": 9,
             "splits": {"train": 0.8, "val": 0.1, "test": 0.1}},
    "train": {"lr": [1e-3, 5e-4], "wd": [0.01, 0.0], "warmup_steps": [3, 2], "max_grad_norm": 0.5,
              "ema_beta": 0.9, "cosine_decay_max_steps": [20, None], "ema_update_after_step": 2,
              "ema_update_every": 2, "use_ema": True, "device": "cpu"},
    "evaluate": {},
    "tracker": {"data_path": "unused", "log": {"log_type": "console"},
                "load": None, "save": [{"save_to": "local", "save_latest_to": "unused.pth"}]},
}
BATCH = 3
NUDGED = 6  # replays with weights moved by a rounding
MOST_NOISE = 3e-4  # of a tensor's largest entry in those replays: the tests allow 1e-3


def event(unet, update=True, max_batch_size=None):
    return dict(unet=unet, update=update, max_batch_size=max_batch_size)


RUNS = {
    # The two forwards without an update between them add up their gradients.
    "cascade": dict(mask=[True, True], save_behind=7,
                    events=[event(1), event(1), event(2), event(1, max_batch_size=2), event(2),
                            event(1, update=False), event(1), event(1), event(2),
                            event(1), event(1, max_batch_size=1), event(2), event(1)]),
    "masked": dict(mask=[False, True], save_behind=1, events=[event(2), event(2), event(2), event(2)]),
}
KEPT = ("masked",)  # the runs whose checkpoint lies in the repository: that of two unets has 1.1 MB


def make_trainer(mask):
    decoder = DecoderConfig(**CONFIG["decoder"]).create()
    for i, trained in enumerate(mask):
        if trained:
            fill(decoder.unets[i])
        else:
            decoder.unets[i] = nn.Identity()
    train = CONFIG["train"]
    return DecoderTrainer(
        decoder, lr=tuple(train["lr"]), wd=tuple(train["wd"]), warmup_steps=tuple(train["warmup_steps"]),
        cosine_decay_max_steps=tuple(train["cosine_decay_max_steps"]), max_grad_norm=train["max_grad_norm"],
        use_ema=True, ema_beta=train["ema_beta"], ema_update_after_step=train["ema_update_after_step"],
        ema_update_every=train["ema_update_every"])


def keep(draws, name, function):
    """The function, whose results go into a list of `draws` too."""
    def call(*args, **kwargs):
        value = function(*args, **kwargs)
        draws.setdefault(name, []).append(value)
        return value
    return call


def recorded(draws):
    """Appends all that a forward pass draws to `draws`, a dict of lists."""
    return patched(randint=keep(draws, "times", torch.randint), randn_like=keep(draws, "noise", torch.randn_like),
                   prob_mask_like=keep(draws, "mask", D.prob_mask_like), coin=keep(draws, "random", random.random))


def fed(inputs, size, masks, **more):
    """Feeds the draws of `inputs` (as recorded) to the forward passes of one event. @param masks names of them, in the order of a pass"""
    queues = {k: list(inputs[k].split(size)) for k in ("times", "noise")}
    drops = [m for pair in zip(*(inputs[name].split(size) for name in masks)) for m in pair]
    return patched(randint=lambda *a, **k: queues["times"].pop(0), randn_like=lambda *a, **k: queues["noise"].pop(0),
                   prob_mask_like=lambda *a, **k: drops.pop(0), **more)


def given(inputs, max_batch_size):
    return fed(inputs, max_batch_size or BATCH, ("image_keep", "text_keep"), coin=lambda: 0.0 if inputs["blur"].item() else 1.0)


def compact(state, prefix):
    """Up to eight elements of every tensor, evenly spread, and its mean absolute value."""
    out = {}
    for name, tensor in state.items():
        flat = tensor.detach().flatten()
        stride = max(1, flat.numel() // 8)
        out[f"{prefix}{name}"] = torch.cat([flat[::stride][:8], flat.abs().mean()[None]]).clone()
    return out


def save_extras():
    return dict(epoch=1, sample=42, next_task="train", validation_losses=[0.5, 0.25], samples_seen=99,
                config=CONFIG)


def weights(trainer, mask):
    """Weights and averages of the trained unets."""
    found = {}
    for u, trained in enumerate(mask):
        if trained:
            found |= {f"{u}.{name}": tensor.clone() for name, tensor in trainer.decoder.unets[u].state_dict().items()}
            found |= {f"ema.{u}.{name}": tensor.clone() for name, tensor in trainer.ema_unets[u].ema_model.state_dict().items()}
    return found


def replayed(run, tensors, seed=None):
    """The weights where the recorded run saves and at its end, from weights that are moved by a rounding if `seed` says how."""
    trainer, found = make_trainer(run["mask"]), {}
    for u, trained in enumerate(run["mask"]):
        if trained and seed is not None:
            nudge(trainer.decoder.unets[u].parameters(), seed)
            trainer.ema_unets[u].ema_model.load_state_dict(trainer.decoder.unets[u].state_dict())
    for i, e in enumerate(run["events"]):
        inputs = {name.removeprefix(f"{i}."): tensor for name, tensor in tensors.items() if name.startswith(f"{i}.")}
        with given(inputs, e["max_batch_size"]):
            trainer(inputs["images"], image_embed=inputs["image_embeds"], unet_number=e["unet"], max_batch_size=e["max_batch_size"])
        if e["update"]:
            trainer.update(e["unet"])
        if i == run["save_behind"]:
            found = {f"saved.{name}": tensor for name, tensor in weights(trainer, run["mask"]).items()}
    return found | weights(trainer, run["mask"])


def most_noise(run, tensors):
    """How far roundings of the first weights move a weight, of the largest in its tensor."""
    one, most = replayed(run, tensors), 0.0
    for seed in range(NUDGED):
        for name, tensor in replayed(run, tensors, seed).items():
            if tensor.is_floating_point():
                most = max(most, ((tensor - one[name]).abs().max() / one[name].abs().max().clamp(min=1e-30)).item())
    return most


def play(folder, name, seed):
    """@return whether the run was written"""
    run = RUNS[name]
    torch.manual_seed(seed)
    random.seed(seed)
    trainer = make_trainer(run["mask"])
    tensors, log = {}, []
    for i, e in enumerate(run["events"]):
        images = torch.rand(BATCH, 3, 16, 16)
        embeds = torch.randn(BATCH, 8)
        draws = {}
        with recorded(draws):
            loss = trainer(images, image_embed=embeds, unet_number=e["unet"], max_batch_size=e["max_batch_size"])
        tensors.update({
            f"{i}.images": images, f"{i}.image_embeds": embeds, f"{i}.times": torch.cat(draws["times"]),
            f"{i}.noise": torch.cat(draws["noise"]), f"{i}.image_keep": torch.cat(draws["mask"][0::2]),
            f"{i}.text_keep": torch.cat(draws["mask"][1::2]),
            f"{i}.blur": torch.tensor([draws.get("random", [1.0])[0] < 0.5])})
        entry = dict(e, loss=loss)
        if e["update"]:
            optimizer = getattr(trainer, f"optim{e['unet'] - 1}")
            entry["lr"] = optimizer.param_groups[0]["lr"]
            grads = [p.grad for p in trainer.decoder.parameters() if p.grad is not None]
            entry["grad_norm"] = torch.stack([g.norm() for g in grads]).norm().item()
            trainer.update(e["unet"])
        log.append(entry)
        if i == run["save_behind"]:
            trainer.save(folder / f"{name}.pth", **save_extras())
    if most_noise(run, tensors) > MOST_NOISE:
        return False
    for u, trained in enumerate(run["mask"]):
        if trained:
            tensors.update(compact(trainer.decoder.unets[u].state_dict(), f"final.{u}."))
            tensors.update(compact(trainer.ema_unets[u].ema_model.state_dict(), f"ema.{u}."))
    config = json.loads(json.dumps(CONFIG))
    config["train"]["unet_training_mask"] = run["mask"]
    meta = dict(config=config, mask=run["mask"], events=log, save_behind=run["save_behind"],
                steps=trainer.steps.tolist())
    write_case(folder, name, tensors, meta)
    (folder / f"{name}.pth").chmod(0o644)
    return True


def main():
    folder, arguments = folder_and_options("trainer", __doc__, kept=KEPT)
    torch.set_num_threads(1)
    for name in RUNS:
        number = arguments.seed
        while not play(folder, name, number):
            number += 1000003
        if arguments.kept is not None and name not in arguments.kept:
            (folder / f"{name}.pth").unlink()


if __name__ == "__main__":
    main()
