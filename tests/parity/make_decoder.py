# SPDX-License-Identifier: MIT
"""Random decoders from the whole option space of Decoder and Unet, and what dalle2_pytorch computes with them.

    python make_decoder.py --out fixtures [--seed 0] [--cases 60]    writes fixtures/decoder/*.safetensors

A case is a `decoder` section of a config in the metadata and, for each stage, everything random of one training
step (`stageN.draw.*`), its loss and a digest of every gradient (`stageN.grads`, a row a parameter, zero for one that
got none); then a sampling run. Weights, inputs and normal noise are waves (see `wave`, `fill`), so they need no
room: the reader makes them anew. The `*_noise` values say how far the reference's own results move when every weight
moves by one rounding of float32: what no other order of summation can be expected to keep to.
"""
import contextlib
import os
import random
import warnings

os.environ["TQDM_DISABLE"] = "1"
warnings.filterwarnings("ignore")

import numpy as np
import torch

import dalle2_pytorch.dalle2_pytorch as reference

from case_files import folder_and_options, write_cases
from waves import digest, fill, nudge, wave

SIDES = (8, 12, 16, 24, 32)
BATCH = 2


# ---------------------------------------------------------------------------------------------- configurations

def draw_unet(r, first, conditional, text, sides):
    """@param sides: sides of the images it must be able to halve"""
    maybe = lambda p: r.random() < p
    unet = {"dim": r.choice((8, 8, 16))}
    unet["memory_efficient"] = maybe(0.3)
    most = 3
    while most > 1 and any(s % 2 ** (most if unet["memory_efficient"] else most - 1) for s in sides):
        most -= 1
    levels = r.randint(1, most)
    if unet["memory_efficient"] and any(s % 2 ** levels for s in sides):
        unet["memory_efficient"] = False
    unet["dim_mults"] = [1] + [r.randint(1, 2) for _ in range(levels - 1)]
    if unet["memory_efficient"] and maybe(0.5):
        unet["dim_mults"][0] = 2
    one_or_many = lambda draw: draw() if maybe(0.5) else [draw() for _ in range(levels)]
    if first and conditional:
        unet["image_embed_dim"] = r.choice((6, 12))
    if text:
        unet["cond_on_text_encodings"] = True
        unet["text_embed_dim"] = 5
        unet["max_text_len"] = r.randint(3, 6)
    unet["cond_dim"] = r.choice((7, 10, None))
    unet["attn_dim_head"] = r.choice((4, 8))
    unet["attn_heads"] = r.randint(1, 3)
    unet["self_attn"] = one_or_many(lambda: maybe(0.4))
    unet["sparse_attn"] = maybe(0.4)
    for key in ("cosine_sim_cross_attn", "cosine_sim_self_attn", "cross_embed_downsample", "scale_skip_connection",
                "self_cond", "resnet_weight_standardization", "combine_upsample_fmaps", "checkpoint_during_training"):
        unet[key] = maybe(0.35)
    for key in ("init_cross_embed", "pixel_shuffle_upsample", "add_image_embeds_to_time"):
        unet[key] = maybe(0.6)
    unet["num_image_tokens"] = r.randint(1, 4)
    unet["num_time_tokens"] = r.randint(1, 3)
    unet["init_conv_kernel_size"] = r.choice((3, 5, 7))
    if maybe(0.3):
        unet["init_cross_embed_kernel_sizes"] = r.choice(([3, 5], [7, 3, 5], [3]))
    if maybe(0.3):
        unet["cross_embed_downsample_kernel_sizes"] = r.choice(([2], [4, 2], [2, 4, 6]))
    unet["final_conv_kernel_size"] = r.choice((1, 3))
    unet["resnet_groups"] = one_or_many(lambda: r.choice((1, 2, 4, 8)))
    unet["num_resnet_blocks"] = one_or_many(lambda: r.randint(1, 2))
    return unet


def draw_schedule(r, learned_variance, predicts_noise, timesteps):
    """A schedule the reference has no NaN with, and how many steps to sample with (None for all)."""
    kinds = ["cosine"]
    if timesteps >= 21:
        kinds += ["linear", "quadratic", "sigmoid"]
    if not learned_variance:
        kinds.append("jsd")
    kind = r.choice(kinds)
    steps = r.choice((None, r.randint(2, 4))) if timesteps < 10 else r.randint(2, 5)
    if kind == "jsd":  # its last step holds nothing of the image
        if predicts_noise and steps is None:
            steps = 2
        if steps is not None and int(timesteps * steps / (steps + 1)) >= timesteps - 1:
            steps = None if not predicts_noise else 1
    return kind, steps


def draw_decoder(r):
    maybe = lambda p: r.random() < p
    stages = r.choice((1, 1, 1, 2, 2, 3))
    sizes = sorted(r.sample(SIDES[:4] if stages == 1 else SIDES, stages))
    conditional = maybe(0.7)
    texts = [conditional and maybe(0.4) for _ in range(stages)]
    each = lambda draw: [draw() for _ in range(stages)]
    one_or_each = lambda draw: draw() if maybe(0.4) else each(draw)
    d = {"image_sizes": sizes} if stages > 1 or maybe(0.5) else {"image_size": sizes[0]}
    d["channels"] = r.choice((3, 3, 1))
    d["timesteps"] = r.choice((5, 8, 21, 30))
    d["unconditional"] = not conditional
    d["loss_type"] = r.choice(("l1", "l2", "huber"))
    d["image_cond_drop_prob"] = r.choice((0.1, 0.5, 0.0, 1.0))
    d["text_cond_drop_prob"] = r.choice((0.1, 0.5, 0.0, 1.0))
    d["learned_variance"] = r.choice((True, False, each(lambda: maybe(0.5))))
    d["predict_v"] = one_or_each(lambda: maybe(0.3))
    d["predict_x_start"] = one_or_each(lambda: maybe(0.4))
    d["predict_x_start_for_latent_diffusion"] = maybe(0.1)
    of = lambda value, i: value[i] if isinstance(value, list) else value
    schedules = []
    for i in range(stages):
        lv = d["learned_variance"]
        learned = lv[i] if isinstance(lv, list) else lv and i == 0
        x_start = of(d["predict_x_start"], i) and not d["predict_x_start_for_latent_diffusion"]
        schedules.append(draw_schedule(r, learned, not (of(d["predict_v"], i) or x_start), d["timesteps"]))
    d["beta_schedule"] = [s[0] for s in schedules]
    if maybe(0.2) and (stages == 1 or d["timesteps"] >= 21):  # the default: cosine ... linear
        d["beta_schedule"] = None
    d["sample_timesteps"] = [s[1] for s in schedules]
    d["p2_loss_weight_gamma"] = one_or_each(lambda: r.choice((0.0, 0.5, 1.0)))
    d["p2_loss_weight_k"] = r.choice((1, 0.5))
    d["vb_loss_weight"] = r.choice((0.001, 0.01))
    d["learned_variance_constrain_frac"] = maybe(0.3)
    d["auto_normalize_img"] = maybe(0.75)
    d["use_dynamic_thres"] = maybe(0.4)
    d["dynamic_thres_percentile"] = r.choice((0.95, 0.8))
    d["ddim_sampling_eta"] = r.choice((0.0, 0.0, 0.5, 1.0))
    crops = [None] * stages
    if stages > 1:
        d["use_noise_for_lowres_cond"] = [maybe(0.4) for _ in range(stages - 1)]
        d["use_blur_for_lowres_cond"] = [not n or maybe(0.5) for n in d["use_noise_for_lowres_cond"]]
        if maybe(0.3):
            d["use_blur_for_lowres_cond"] = True
        d["lowres_downsample_first"] = maybe(0.6)
        d["blur_prob"] = r.choice((0.5, 1.0, 1.0, 0.0))
        d["blur_sigma"] = r.choice((0.6, [0.4, 1.2]))
        d["blur_kernel_size"] = r.choice((3, 5, [3, 7]))
        d["lowres_noise_sample_level"] = r.choice((0.2, 0.05))
        crops = [None] + [r.choice((None, s // 2)) for s in sizes[1:]]
        if maybe(0.5):
            d["random_crop_sizes"] = crops
        else:
            crops = [None] * stages
    d["unets"] = [draw_unet(r, i == 0, conditional, texts[i], [s for s in (sizes[i], crops[i]) if s])
                  for i in range(stages)]
    return d


def draw_sampling(r, d):
    stages = len(d["unets"])
    guided = d["image_cond_drop_prob"] > 0 or d["text_cond_drop_prob"] > 0
    s = {"cond_scale": 1.0, "start_at_unet_number": 1, "stop_at_unet_number": None, "inpaint": False}
    if guided and r.random() < 0.5:
        s["cond_scale"] = r.choice((2.0, [round(r.uniform(1, 3), 2) for _ in range(stages)]))
    if stages > 1 and r.random() < 0.3:
        s["start_at_unet_number"] = r.randint(2, stages)
    elif stages > 1 and r.random() < 0.3:
        s["stop_at_unet_number"] = r.randint(1, stages - 1)
    s["inpaint"] = r.random() < 0.25
    s["inpaint_resample_times"] = r.randint(1, 2)
    return s


def build(d):
    """The reference's objects, as its DecoderConfig makes them. JSON's two-element blur arrays mean ranges."""
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in d.items() if k != "unets"}
    unets = tuple(reference.Unet(**u) for u in d["unets"])
    decoder = reference.Decoder(unet=unets, **arguments)
    for unet in decoder.unets:
        fill(unet)
    return decoder


# ---------------------------------------------------------------------------------------------- randomness

class Draws:
    """Stands in for every source of randomness of a training step, and writes down what it gave."""

    def __init__(self, r):
        self.r, self.normals, self.record, self.coins = r, 0, {}, []

    def normal(self, shape):
        self.normals += 1
        return wave(shape, 0.83, 0.5 * self.normals, 1.2)

    def randint(self, low, high, shape, **_):
        times = [self.r.choice((low, high - 1, self.r.randrange(low, high))) for _ in range(shape[0])]
        name = "lowres_level" if "times" in self.record else "times"
        self.record[name] = np.array(times, np.int64)
        return torch.tensor(times)

    def coin(self):
        self.coins.append(self.r.random())
        return self.coins[-1]

    def uniform(self, low, high):
        self.record["blur_sigma"] = np.array(self.r.uniform(low, high))
        return float(self.record["blur_sigma"])

    def randrange(self, low, high):
        odd = [k for k in range(low, high) if k % 2]
        self.record["blur_kernel_size"] = np.array(self.r.choice(odd), np.int64)
        return int(self.record["blur_kernel_size"])


@contextlib.contextmanager
def patched(draws):
    saved = torch.randn, torch.randn_like, torch.randint, reference.random, reference.prob_mask_like
    saved_crop = reference.K.RandomCrop

    class Crop(saved_crop):
        def forward(self, x, params=None, **kwargs):
            out = super().forward(x, params=params, **kwargs)
            draws.record["crop_offsets"] = self._params["src"][:, 0].long().numpy()
            return out

    class Random:
        random = staticmethod(draws.coin)
        uniform = staticmethod(draws.uniform)
        randrange = staticmethod(draws.randrange)

    masks = []

    def mask(shape, prob, device=None):
        masks.append(np.array([draws.r.random() < prob for _ in range(shape[0])]))
        return torch.from_numpy(masks[-1])

    torch.randn = lambda shape, **_: draws.normal(shape)
    torch.randn_like = lambda x, **_: draws.normal(x.shape)
    torch.randint = draws.randint
    reference.random, reference.prob_mask_like, reference.K.RandomCrop = Random, mask, Crop
    try:
        yield masks
    finally:
        torch.randn, torch.randn_like, torch.randint, reference.random, reference.prob_mask_like = saved
        reference.K.RandomCrop = saved_crop


# ---------------------------------------------------------------------------------------------- results

def inputs_of(d, side):
    """Images in the range of the data, a little larger than the last stage; conditioning."""
    scale, offset = (0.5, 0.5) if d["auto_normalize_img"] else (1.0, 0.0)
    image = wave((BATCH, d["channels"], side, side), 0.05, 0.3, scale, offset)
    embed = text = None
    if not d["unconditional"]:
        embed = wave((BATCH, d["unets"][0]["image_embed_dim"]), 0.9, 0.3)
    length = d.get("text_length")
    if length:
        text = wave((BATCH, length, 5), 0.5, 0.1)
        text[1, length // 2:] = 0.0  # padding
    return image, embed, text


NUDGES = (1, 2, 3, 4)


def train_step(decoder, d, number, r, tensors):
    """One training step and its noise."""
    state = r.getstate()
    unet, prefix = decoder.unets[number - 1], f"stage{number}."
    loss, rows = one_train_step(decoder, d, number, r, tensors)
    end = r.getstate()
    loss_noise, noise = 0.0, np.zeros(len(rows))
    for seed in NUDGES:
        r.setstate(state)
        nudge(unet.parameters(), seed)
        moved_loss, moved = one_train_step(decoder, d, number, r, {})
        fill(unet)
        loss_noise = max(loss_noise, abs(moved_loss - loss))
        noise = np.maximum(noise, np.abs(moved - rows).max(1))
    r.setstate(end)
    tensors[prefix + "loss"], tensors[prefix + "loss_noise"] = np.array([loss]), np.array([loss_noise])
    tensors[prefix + "grads"], tensors[prefix + "grad_noise"] = rows, noise
    return loss


def record_of(decoder, number, draws, masks):
    """All that was drawn in a training step of a stage, by its name."""
    record, coins = draws.record, list(draws.coins)
    conditioner = decoder.lowres_conds[number - 1]
    if conditioner is not None and conditioner.use_blur:
        record["blur"] = np.array(coins.pop(0) < conditioner.blur_prob)
    record["self_condition"] = np.array(bool(coins) and coins[0] < 0.5)
    record["image_keep"], record["text_keep"] = masks[-2], masks[-1]
    return record


def one_train_step(decoder, d, number, r, tensors):
    """@return the loss and a row of digests a parameter; the draws go to `tensors`"""
    draws = Draws(r)
    image, embed, text = inputs_of(d, max(decoder.image_sizes) + d["image_margin"])
    decoder.zero_grad()
    with patched(draws) as masks:
        loss, lowres = decoder(image, image_embed=embed, text_encodings=text, unet_number=number,
                               return_lowres_cond_image=True)
    loss.backward()
    prefix = f"stage{number}."
    tensors.update({f"{prefix}draw.{name}": value for name, value in record_of(decoder, number, draws, masks).items()})
    if lowres is not None:
        tensors[prefix + "lowres"] = digest(lowres)
    parameters = list(decoder.unets[number - 1].parameters())
    return loss.item(), np.stack([digest(torch.zeros(1) if p.grad is None else p.grad) for p in parameters])


def sample(decoder, d, s):
    draws = Draws(random.Random(0))
    image, embed, text = inputs_of(d, max(decoder.image_sizes))
    arguments = {k: s[k] for k in ("start_at_unet_number", "stop_at_unet_number")}
    arguments["cond_scale"] = tuple(s["cond_scale"]) if isinstance(s["cond_scale"], list) else s["cond_scale"]
    if s["start_at_unet_number"] > 1:
        arguments["image"] = image
    if s["inpaint"]:
        mask = torch.zeros(BATCH, image.shape[2], image.shape[3], dtype=torch.bool)
        mask[:, 2:7, 3:8] = True
        arguments.update(inpaint_image=image, inpaint_mask=mask, inpaint_resample_times=s["inpaint_resample_times"])
    with patched(draws):
        return decoder.sample(image_embed=embed, text_encodings=text, batch_size=BATCH, **arguments)


def sample_with_noise(decoder, d, s):
    """The samples, and how far they move when every weight moves by one rounding."""
    drawn, noise = sample(decoder, d, s), 0.0
    for seed in NUDGES:
        for unet in decoder.unets:
            nudge(unet.parameters(), seed)
        noise = max(noise, (sample(decoder, d, s) - drawn).abs().max().item())
        for unet in decoder.unets:
            fill(unet)
    return drawn, noise


EXTRA = ("text_length", "image_margin")  # of a case, no keys of a decoder


def draw_extra(r, d):
    """@return the decoder's section without them"""
    own = dict(d)
    d["text_length"] = r.randint(2, 7) if any(u.get("cond_on_text_encodings") for u in d["unets"]) else None
    d["image_margin"] = r.choice((0, 4))
    return own


def case_of(seed, d, own, tensors, **more):
    """@return tensors in float32, but for what was drawn, and metadata"""
    kept = {name: value.astype(np.float32) if value.dtype == np.float64 and ".draw." not in name else value for name, value in tensors.items()}
    return kept, {"seed": seed, "decoder": own, "batch": BATCH, **more, **{k: d[k] for k in EXTRA}}


def make_case(seed):
    """@return tensors and metadata, or None for a configuration the reference itself has no numbers for"""
    r = random.Random(seed)
    torch.manual_seed(seed)
    d = draw_decoder(r)
    own = draw_extra(r, d)
    decoder = build(own)
    decoder.train()
    tensors = {}
    losses = [train_step(decoder, d, n, r, tensors) for n in range(1, len(d["unets"]) + 1)]
    # A loop that grows a rounding beyond ten times the tests' tolerance proves nothing: draw another.
    for _ in range(5):
        sampling = draw_sampling(r, d)
        drawn, noise = sample_with_noise(decoder, d, sampling)
        if 20 * noise <= 1e-2 * drawn.abs().max().item():
            break
    else:
        return None
    tensors["sample"] = drawn.numpy()
    # A learned variance's bound overflows in the reference where the raw fraction is large.
    if not all(np.isfinite(value).all() for value in tensors.values()) or not np.isfinite(losses).all():
        return None
    return case_of(seed, d, own, tensors, sampling=sampling, sample_noise=noise)


# What lies in the repository, by the numbers of the cases and of their draws: all options, and most pairs of those that meet in a loss or a loop.
KEPT = {2: 2, 4: 4, 8: 9, 12: 13, 13: 14, 16: 18, 17: 19, 22: 25, 26: 29, 28: 32, 30: 34, 32: 38, 34: 41, 43: 51, 44: 52, 45: 53, 57: 69, 59: 72}


def main():
    folder, arguments = folder_and_options("decoder", __doc__, cases=60, kept=KEPT)
    torch.set_num_threads(1)
    write_cases(folder, make_case, arguments)


if __name__ == "__main__":
    main()
