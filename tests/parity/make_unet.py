# SPDX-License-Identifier: MIT
"""Unets of random configurations, run by dalle2-pytorch 1.15.6: outputs, a loss, every gradient.

    python tests/parity/make_unet.py [--seed N] [--cases N] [--out FOLDER]

One safetensors file a case. Weights are a function of the parameter's name (see `fill`), so they are not
stored. A gradient is stored as its L2 norm, two projections and eight of its entries, with the noise
that float32 leaves in it.
"""
import copy
import json
import random
import warnings

warnings.filterwarnings("ignore")

import torch
from safetensors.torch import save_file

import dalle2_pytorch.dalle2_pytorch as reference

from case_files import folder_and_options
from waves import fill, nudge, wave

ENTRIES = 8  # gradient entries stored for a parameter


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def draw_config(rng):
    """A valid set of Unet options (config.md, section 3); every option is drawn."""
    coin = lambda p=0.5: rng.random() < p
    levels = rng.choice([1, 2, 2, 2, 3])
    efficient = coin(0.4)
    dim = rng.choice([4, 6, 8, 8, 12])
    combine = coin(0.25)
    if combine:
        dim = 8
    mults = [rng.choice([1, 2, 3]) if efficient else 1]
    mults += [rng.choice([1, 2, 3]) for _ in range(levels - 1)]
    widths = [dim] + [dim * m for m in mults]

    def groups_at(i):
        used = [dim, widths[i], widths[i + 1]]
        return [g for g in (1, 2, 3, 4, 6, 8) if all(w % g == 0 for w in used)]

    common = sorted(set.intersection(*[set(groups_at(i)) for i in range(levels)]))
    groups = rng.choice(common) if coin() else [rng.choice(groups_at(i)) for i in range(levels)]
    init_cross = coin(0.6)
    kernels = rng.sample([1, 3, 5, 7], rng.choice([1, 2, 3]) if dim >= 4 else 1)
    config = dict(
        dim=dim,
        dim_mults=mults,
        channels=rng.choice([1, 3, 3, 4]),
        channels_out=rng.choice([None, 2, 6]),
        cond_dim=rng.choice([None, 10, 7]),
        self_attn=coin(0.4) if coin() else [coin() for _ in range(levels)],
        attn_dim_head=rng.choice([4, 5, 8]),
        attn_heads=rng.choice([1, 2, 3]),
        num_image_tokens=rng.choice([1, 3, 4]),
        num_time_tokens=rng.choice([1, 2, 3]),
        sparse_attn=coin(0.4),
        cosine_sim_cross_attn=coin(0.4),
        cosine_sim_self_attn=coin(0.4),
        attend_at_middle=coin(),
        max_text_len=rng.choice([3, 5, 20]),
        add_image_embeds_to_time=coin(0.6),
        init_dim=rng.choice([None, dim]),
        init_cross_embed=init_cross,
        init_cross_embed_kernel_sizes=kernels,
        init_conv_kernel_size=rng.choice([1, 3, 7]),
        resnet_groups=groups,
        resnet_weight_standardization=coin(0.35),
        num_resnet_blocks=rng.choice([1, 2]) if coin() else [rng.choice([0, 1, 2]) for _ in range(levels)],
        cross_embed_downsample=coin(0.35),
        cross_embed_downsample_kernel_sizes=rng.choice([[2, 4], [4, 2], [2], [2, 4, 6]]),
        memory_efficient=efficient,
        scale_skip_connection=coin(),
        pixel_shuffle_upsample=coin(0.6),
        final_conv_kernel_size=rng.choice([1, 1, 3]),
        combine_upsample_fmaps=combine,
        checkpoint_during_training=coin(0.25),
        lowres_cond=coin(0.4),
        lowres_noise_cond=coin(0.4),
        self_cond=coin(0.4),
        cond_on_image_embeds=coin(0.7),
        cond_on_text_encodings=coin(0.4),
        image_embed_dim=rng.choice([12, 9]),
        text_embed_dim=rng.choice([6, 11]),
    )
    if config["cross_embed_downsample_kernel_sizes"] == [2, 4, 6] and min(widths) < 4:
        config["cross_embed_downsample_kernel_sizes"] = [2, 4]
    halvings = levels if efficient else levels - 1
    # torch normalises no group of a single value, so the smallest feature map has four pixels.
    config["_side"] = rng.choice([s for s in (4, 8, 12, 16) if s % 2**halvings == 0 and s > 2**halvings])
    config["_batch"] = rng.choice([1, 2, 2, 3])
    config["_text_len"] = rng.choice([1, 2, 4, 7])
    config["_has"] = {k: coin(0.8) for k in ("text", "self_cond", "noise_level", "masks")}
    # A width equal to the tokens' needs a batch of one: the reference mixes samples otherwise.
    if config["cond_on_image_embeds"] and coin(0.15):
        config["image_embed_dim"] = config["cond_dim"] or dim
    if config["image_embed_dim"] == (config["cond_dim"] or dim):
        config["_batch"] = 1
    return config


def inputs_of(config, rng):
    b, c, side = config["_batch"], config["channels"], config["_side"]
    has = config["_has"]
    t = {"x": wave((b, c, side, side), 0.37, 0.1), "time": torch.tensor([rng.randrange(1000) for _ in range(b)])}
    if config["cond_on_image_embeds"]:
        t["image_embed"] = wave((b, config["image_embed_dim"]), 0.9, 0.3)
    if config["cond_on_text_encodings"] and has["text"]:
        t["text_encodings"] = wave((b, config["_text_len"], config["text_embed_dim"]), 0.5, 0.1)
        for i in range(b):  # some rows are padding
            t["text_encodings"][i, rng.randrange(config["_text_len"] + 1):] = 0.0
    if config["lowres_cond"]:
        t["lowres_cond_img"] = wave((b, c, side, side), 0.13, 0.7)
    if config["lowres_noise_cond"] and has["noise_level"]:
        t["lowres_noise_level"] = torch.tensor([rng.randrange(1000) for _ in range(b)])
    if config["self_cond"] and has["self_cond"]:
        t["self_cond"] = wave((b, c, side, side), 0.11)
    if has["masks"]:
        t["image_keep_mask"] = torch.tensor([rng.random() < 0.6 for _ in range(b)])
        t["text_keep_mask"] = torch.tensor([rng.random() < 0.6 for _ in range(b)])
    return t


def compact(gradient):
    """[norm, projection, projection, entries]; a gradient that does not exist is zero."""
    g = gradient.detach().double().flatten()
    n = g.numel()
    entries = torch.zeros(ENTRIES, dtype=torch.float64)
    picked = [(k * n) // ENTRIES for k in range(ENTRIES)]
    entries[:] = g[picked]
    projections = [(g * wave((n,), f, ph).double()).sum() for f, ph in ((0.61, 0.4), (0.083, 1.1))]
    return torch.cat([g.norm().reshape(1), torch.stack(projections), entries]).float()


NUDGED = 12  # runs with weights moved by a rounding


def rounding_noise(one, start, run, seed):
    """The most that each tensor of `one` changes when `run` has the network `start` with weights moved by a rounding."""
    noise = dict.fromkeys(one, 0.0)
    for time in range(NUDGED):
        moved = copy.deepcopy(start)
        nudge(moved.parameters(), seed + 1 + 1000003 * time)
        for name, value in run(moved).items():
            noise[name] = max(noise[name], float((value.double() - one[name].double()).abs().max()))
    return noise


def forward(net, t, **drops):
    """Runs the net with the drop masks of `t` in place of drawn ones (the image's is drawn first)."""
    drawn = iter([t.get("image_keep_mask"), t.get("text_keep_mask")])
    original = reference.prob_mask_like

    def prob_mask(shape, prob, device):
        given = next(drawn)
        return original(shape, prob, device) if prob == 0 or given is None else given

    reference.prob_mask_like = prob_mask
    try:
        conditions = {k: v for k, v in t.items() if k not in ("x", "time") and not k.endswith("mask")}
        conditions.setdefault("image_embed", None)
        return net(t["x"], t["time"], **conditions, **drops)
    finally:
        reference.prob_mask_like = original


def backward(net, t):
    """Output, loss, compact gradients and the gradient of the image."""
    net.zero_grad()
    t["x"] = t["x"].detach().requires_grad_(True)
    out = forward(net, t)
    loss = (out * wave(out.shape, 0.53, 0.2)).sum()
    loss.backward()
    rows = [compact(p.grad if p.grad is not None else torch.zeros_like(p)) for p in net.parameters()]
    return out.detach(), loss.detach().reshape(1), torch.stack(rows), t["x"].grad.clone()


def run_case(config, rng):
    net = reference.Unet(**{k: v for k, v in config.items() if not k.startswith("_")})
    fill(net)
    net.train()
    t = inputs_of(config, rng)
    out, loss, rows, grad_x = backward(net, t)
    with torch.no_grad():
        null = forward(net, t, image_cond_drop_prob=1.0, text_cond_drop_prob=1.0)
    tensors = {k: v.detach().contiguous() for k, v in t.items()}
    tensors.update(out=out, null=null, cfg=null + (out - null) * 2.5, loss=loss, grads=rows, grad_x=grad_x)
    # How far the reference's own gradients move when its numbers move by one rounding.
    noise = torch.zeros(len(rows))
    noise_x = noise_out = 0.0
    for seed in (1, 2, 3):
        fill(net)
        nudged = dict(t, x=t["x"].detach().clone())
        nudge([nudged["x"], *net.parameters()], seed)
        moved_out, _, moved, moved_x = backward(net, nudged)
        noise_out = max(noise_out, (moved_out - out).abs().max().item())
        noise = torch.maximum(noise, (moved - rows).abs().amax(1))
        noise_x = max(noise_x, (moved_x - grad_x).abs().max().item())
    tensors["grad_noise"] = noise
    named = list(net.named_parameters())
    assert [n for n, _ in named] == list(net.state_dict())
    lines = [f"{n} {','.join(map(str, p.shape))}" for n, p in named]
    summary = dict(names_fnv1a=fnv1a("\n".join(lines)), grad_x_noise=noise_x, out_noise=noise_out,
                   num_parameters=sum(p.numel() for _, p in named))
    return tensors, summary


# The cases that lie in the repository: all options.
KEPT = (0, 1, 2, 4, 5, 7, 8, 9, 13, 15, 17, 19)


def main():
    out, args = folder_and_options("unet", __doc__, seed=1, cases=20, kept=KEPT)
    torch.set_num_threads(1)
    for case in range(args.cases) if args.kept is None else args.kept:
        rng = random.Random(args.seed * 1_000_003 + case)
        config = draw_config(rng)
        tensors, summary = run_case(config, rng)
        assert all(torch.isfinite(v).all() for v in tensors.values() if v.is_floating_point())
        options = {k: v for k, v in config.items() if not k.startswith("_") and v is not None}
        text = json.dumps(dict(unet=options, **summary), sort_keys=True)
        save_file({k: v.contiguous() for k, v in tensors.items()}, out / f"case_{case:03d}.safetensors",
                  metadata={"json": text})


if __name__ == "__main__":
    main()
