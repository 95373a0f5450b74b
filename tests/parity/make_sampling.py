# SPDX-License-Identifier: MIT
"""Checkpoints that dalle2_pytorch's trainer and tracker write, with start noise and the samples it draws from them.

    python make_sampling.py --out fixtures [--seed 0]      writes fixtures/sampling/{*.pth,*.npy,cases.json}

cases.json lists the runs: the checkpoint, the arguments of `dalle2-train sample`, the expected samples and how far
they may be off. All of them are DDIM with eta 0, which is a function of the start noise alone. Networks and pictures
are as small as the options allow, so that the files are. So few channels make some networks amplify rounding (a norm
over four almost equal values); weights are drawn anew, with a smaller last layer each time, until the reference's own
samples stay put under it.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import tempfile
import warnings

os.environ["TQDM_DISABLE"] = "1"
warnings.filterwarnings("ignore")

import numpy as np
import torch
from torch import nn

from dalle2_pytorch.train_configs import TrainDecoderConfig
from dalle2_pytorch.trainer import DecoderTrainer

from case_files import folder_and_options

BATCH = 2
SINGLE, CASCADE = 2e-4, 1e-3  # largest difference of a sample: stages feed their error to the next

TINY = dict(dim=4, dim_mults=[1], cond_dim=4, attn_heads=1, attn_dim_head=4, resnet_groups=2, num_resnet_blocks=1,
            init_cross_embed_kernel_sizes=[3, 5], num_image_tokens=1, num_time_tokens=1)
EMBED = dict(image_embed_dim=6)


def unet(**more):
    return {**TINY, **more}


# name: (layout, unets, decoder options, training mask or None, runs)
CASES = {
    "noise": ("model", [unet(**EMBED)], {}, None, [{}, {"cond_scale": [2.5]}]),
    "velocity": ("model", [unet(**EMBED, cosine_sim_self_attn=True, self_attn=True)],
                 dict(predict_v=True, learned_variance=False), None, [{"cond_scale": [1.7]}]),
    "clean_image": ("model", [unet(**EMBED, memory_efficient=True, pixel_shuffle_upsample=False)],
                    dict(predict_x_start=True, use_dynamic_thres=True, dynamic_thres_percentile=0.9,
                         learned_variance_constrain_frac=True), None, [{}]),
    "text": ("model", [unet(**EMBED, cond_on_text_encodings=True, text_embed_dim=5, max_text_len=4)],
             dict(beta_schedule=["linear"]), None, [{"cond_scale": [1.5], "text_length": 6}, {"text_length": 3}]),
    "self_condition": ("model", [unet(self_cond=True, sparse_attn=True, combine_upsample_fmaps=True, dim=8)],
                       dict(unconditional=True, learned_variance=False, beta_schedule=["sigmoid"]), None, [{}]),
    "grey": ("model", [unet(**EMBED, init_cross_embed=False, init_conv_kernel_size=3, final_conv_kernel_size=3)],
             dict(channels=1, auto_normalize_img=False, beta_schedule=["quadratic"]), None, [{}]),
    "averaged": ("checkpoint", [unet(**EMBED, scale_skip_connection=True, resnet_weight_standardization=True)],
                 dict(beta_schedule=["jsd"], learned_variance=False), None, [{}, {"live": True}]),
    "cascade": ("model", [unet(**EMBED, cond_on_text_encodings=True, text_embed_dim=5, max_text_len=4), unet()],
                dict(image_sizes=[8, 16], beta_schedule=["cosine", "linear"]), None,
                [{"text_length": 3}, {"stop": 1, "cond_scale": [2.0], "text_length": 6}, {"start": 2, "text_length": 3},
                 {"cond_scale": [2.0, 1.0], "text_length": 6}]),
    "second_stage": ("checkpoint", [unet(**EMBED), unet()], dict(image_sizes=[8, 16], learned_variance=[False, True]),
                     [False, True], [{"start": 2}, {"start": 2, "live": True}]),
    "three_stages": ("model", [unet(), unet(), unet(num_time_tokens=2)],
                     dict(image_sizes=[8, 12, 16], unconditional=True, predict_v=[True, False, True],
                          learned_variance=False, lowres_downsample_first=False), None, [{}, {"start": 2, "stop": 2}]),
}

# What lies in the repository: all kinds of runs from both layouts. The other cases have other options of the networks, which
# make_decoder.py draws, too.
KEPT = ("cascade", "second_stage")


def config_of(unets, options, mask, folder):
    decoder = dict(unets=unets, timesteps=100, sample_timesteps=[5] * len(unets), image_cond_drop_prob=0.2,
                   text_cond_drop_prob=0.2, ddim_sampling_eta=0.0)
    if len(unets) == 1:
        decoder["image_size"] = 8
    decoder.update(options)
    data = dict(webdataset_base_url="unused/{}.tar", img_embeddings_url="unused", num_workers=1, batch_size=2,
                start_shard=0, end_shard=9, splits=dict(train=0.8, val=0.1, test=0.1))
    if any(u.get("cond_on_text_encodings") for u in unets):
        data["text_embeddings_url"] = "unused"
    train = dict(device="cpu", ema_beta=0.9, ema_update_after_step=0, ema_update_every=1)
    if mask:
        train["unet_training_mask"] = mask
    tracker = dict(data_path=str(folder), overwrite_data_path=True, log=dict(log_type="console"),
                   save=[dict(save_to="local", save_latest_to=f"{folder}/latest.pth")])
    return dict(decoder=decoder, data=data, train=train, evaluate={}, tracker=tracker)


def settle(module, scale):
    """A network that answers something: the reference's starts with a last layer of zeros."""
    with torch.no_grad():
        nn.init.normal_(module.to_out.weight, std=0.3 * scale)
        nn.init.normal_(module.to_out.bias, std=0.1 * scale)


def make_trainer(config, mask, scale):
    decoder = config.decoder.create()
    for i in range(len(decoder.unets)):
        if mask and not mask[i]:
            decoder.unets[i] = nn.Identity()
        else:
            settle(decoder.unets[i], scale)
    trainer = DecoderTrainer(decoder, ema_beta=0.9, ema_update_after_step=0, ema_update_every=1)
    with torch.no_grad():  # the averages differ from the live weights, as after some training
        for average in trainer.ema_unets:
            for p in average.ema_model.parameters():
                p.mul_(1 + 0.1 * torch.randn_like(p))
    return trainer


def save(config, trainer, layout, path):
    """Through the tracker, as the reference's train_decoder.py does."""
    folder = pathlib.Path(config.tracker.data_path)
    folder.mkdir(parents=True, exist_ok=True)
    tracker = config.tracker.create(config, {})
    tracker.add_save_metadata(state_dict_key="config", metadata=config.dict())
    tracker._save_state_dict(trainer, layout, str(path), epoch=0, sample=2, next_task="train", validation_losses=[],
                             samples_seen=2)
    path.chmod(0o644)


@contextlib.contextmanager
def nudged(trainer, seed):
    """Every weight moved by one rounding of float32, up or down."""
    generator = torch.Generator().manual_seed(seed)
    weights = [p for m in (trainer.decoder, trainer.ema_unets) for p in m.parameters()]
    saved = [p.detach().clone() for p in weights]
    with torch.no_grad():
        for p in weights:
            p.mul_(1 + (torch.randint(0, 2, p.shape, generator=generator) * 2 - 1) * torch.finfo(torch.float32).eps)
    yield
    with torch.no_grad():
        for p, value in zip(weights, saved):
            p.copy_(value)


def sample(trainer, noises, arguments):
    """The reference's samples from the given start noise of each stage."""
    randn, queue = torch.randn, list(noises)
    torch.randn = lambda *a, **k: queue.pop(0)
    try:
        images = trainer.sample(**arguments)
    finally:
        torch.randn = randn
    assert not queue
    return images


def draw(trainer, config, run, folder, name):
    """One sampling run: writes its files. @return arguments of `sample` and tolerance, None for an unsteady run"""
    decoder, arguments, inputs = trainer.decoder, [], {}

    def give(option, label, value):
        file = f"{name}.{label}.npy"
        np.save(folder / file, value.numpy().astype(np.float32))
        arguments.extend([option, {"file": file}])
        return value

    unets = config.decoder.unets
    start, stop = run.get("start", 1), run.get("stop", len(unets))
    if not decoder.unconditional:
        inputs["image_embed"] = give("--image-embeds", "embeds", torch.randn(BATCH, 6))
    if "text_length" in run:
        text = torch.randn(BATCH, run["text_length"], 5)
        text[1, run["text_length"] - 1:] = 0  # padding
        inputs["text_encodings"] = give("--text-encodings", "text", text)
    if start > 1:
        arguments.extend(["--start-unet", str(start)])
        inputs["image"] = give("--image", "image", torch.rand(BATCH, decoder.channels, 8, 8))
    if "stop" in run:
        arguments.extend(["--stop-unet", str(stop)])
    if "cond_scale" in run:
        arguments.append("--cond-scale")
        arguments.extend(map(str, run["cond_scale"]))
    if run.get("live"):
        arguments.append("--no-ema")
    noises = [give("--init-noise", f"noise{n}", torch.randn(BATCH, decoder.channels, s, s))
              for n, s in enumerate(decoder.image_sizes[start - 1:stop])]
    scale = run.get("cond_scale", [1.0])
    arguments_of_sample = dict(inputs, batch_size=BATCH, start_at_unet_number=start, stop_at_unet_number=stop,
                               cond_scale=scale[0] if len(scale) == 1 else tuple(scale),
                               use_non_ema=run.get("live", False))
    images = sample(trainer, noises, arguments_of_sample)
    tolerance = SINGLE if start == stop else CASCADE
    unsteadiness = 0.0
    for seed in (1, 2, 3):
        with nudged(trainer, seed):
            moved = sample(trainer, noises, arguments_of_sample)
        unsteadiness = max(unsteadiness, (moved - images).abs().max().item())
    if not unsteadiness * 20 <= tolerance:
        return None
    assert torch.isfinite(images).all()
    low = 0.0 if getattr(config.decoder, "auto_normalize_img", True) else -1.0
    np.save(folder / f"{name}.expected.npy", images.clamp(low, 1.0).numpy())
    return arguments, tolerance


def make_case(name, folder, seed, scale):
    """A checkpoint and its runs. @return None if one of them is unsteady with these weights"""
    layout, unets, decoder, mask, runs = CASES[name]
    torch.manual_seed(seed)
    random.seed(seed)
    with tempfile.TemporaryDirectory() as scratch:
        config = TrainDecoderConfig(**config_of(unets, decoder, mask, scratch))
        trainer = make_trainer(config, mask, scale)
        save(config, trainer, layout, folder / f"{name}.pth")
    cases = []
    for number, run in enumerate(runs):
        label = f"{name}.{number}"
        drawn = draw(trainer, config, run, folder, label)
        if drawn is None:
            return None
        cases.append(dict(name=label, checkpoint=f"{name}.pth", layout=layout, arguments=drawn[0],
                          expected=f"{label}.expected.npy", tolerance=drawn[1]))
    return cases


def main():
    folder, options = folder_and_options("sampling", __doc__, kept=KEPT)
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cases = []
    for index, name in enumerate(CASES):
        if options.kept is not None and name not in options.kept:
            continue
        made = None
        for attempt in range(100):
            made = make_case(name, folder, (options.seed * 1000 + index) * 100 + attempt, 0.97 ** attempt)
            if made is not None:
                break
        assert made is not None, f"{name}: no steady weights"
        cases += made
    (folder / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
