# SPDX-License-Identifier: MIT
"""Random decoders with stages in the latent space of a VQGAN-VAE, and what dalle2_pytorch computes with them.

    python make_latent.py --out fixtures [--seed 0] [--cases 12]    writes fixtures/latent/*.safetensors

As make_decoder.py, with a dalle2_pytorch.VQGanVAE before some of the unets. Its weights are a function of their names, its codebook is
in the file (`codebookN`). The reference maps a sampled latent by (x + 1) / 2 before it decodes it, though training never mapped it: that is
put right here. Samples whose codes hang on a rounding are drawn anew.
"""
import random

import numpy as np
import torch

import make_decoder
from make_decoder import reference
import dalle2_pytorch.vqgan_vae as vqgan_vae
from case_files import folder_and_options, write_cases
from close_choices import EPSILON, LATENT_ROUNDINGS, CloseChoices
from waves import fill, nudge

LATENTS = []  # that VAEs have decoded
MOVES_ALLOWED = 60  # kLoopNoiseSteps of the tests: how often a sampling loop may move by what moved weights move


def draw_vae(r, channels):
    maybe = lambda p=0.5: r.random() < p
    vae = {"kind": "dalle2", "dim": r.choice((4, 8)), "channels": channels, "use_vgg_and_gan": False,
           "vq_codebook_size": r.choice((6, 12)), "vq_codebook_dim": r.choice((4, 8)), "vq_use_cosine_sim": maybe(),
           "vq_kmeans_init": False}
    if maybe(0.25):
        vae |= {"vae_type": "vit", "layers": 1, "encdec_patch_size": r.choice((2, 4)), "encdec_dim_head": 4, "encdec_heads": 2}
        return vae, vae["encdec_patch_size"], vae["dim"]
    layers = r.choice((1, 1, 2))
    vae |= {"layers": layers, "encdec_resnet_groups": 4, "encdec_num_resnet_blocks": r.choice((0, 1)), "encdec_use_attn": maybe(),
            "encdec_attn_dim_head": 4, "encdec_attn_heads": 2}
    if maybe(0.4):
        vae["encdec_layer_mults"] = [r.choice((1, 2)) for _ in range(layers)]
    return vae, 2 ** layers, vae["dim"] * vae.get("encdec_layer_mults", [2 ** i for i in range(layers)])[-1]


def make_vae(config):
    own = ("kind",)
    return vqgan_vae.VQGanVAE(**{k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k not in own})


def draw_latents(r, d):
    """Puts VAEs before some of the unets, whose images become as many times as large."""
    sizes = d.get("image_sizes") or [d["image_size"]]
    crops = d.get("random_crop_sizes")
    vaes, latent = [], []
    before = 0
    for i, side in enumerate(sizes):
        vae, times, width = draw_vae(r, d["channels"])
        if r.random() < 0.7 and side * times > before:
            vae["image_size"] = side * times
            vaes.append(vae)
            latent.append(width)
            sizes[i] = side * times
            if crops and crops[i]:
                crops[i] *= times
        else:
            if side <= before:
                return False  # no longer in order
            vaes.append(None)
            latent.append(d["channels"])
        before = sizes[i]
    if not any(vaes):
        return False
    if "image_size" in d:
        d["image_size"] = sizes[0]
    d["vae"] = vaes
    return True


def build(d):
    arguments = {k: tuple(v) if isinstance(v, list) else v for k, v in d.items() if k not in ("unets", "vae")}
    vaes = []
    for number, config in enumerate(d["vae"]):
        if config is None:
            vaes.append(vqgan_vae.NullVQGanVAE(channels=d["channels"]))
            continue
        vae = make_vae(config)
        fill(vae)
        codebook = vae.vq._codebook
        generator = torch.Generator().manual_seed(number)
        embed = torch.randn(codebook.embed.shape, generator=generator)
        codebook.embed.data.copy_(torch.nn.functional.normalize(embed, dim=-1) if config["vq_use_cosine_sim"] else embed)
        vaes.append(vae)
    decoder = reference.Decoder(unet=tuple(reference.Unet(**u) for u in d["unets"]), vae=tuple(vaes), **arguments)
    for unet in decoder.unets:
        fill(unet)
    for vae in decoder.vaes:
        if isinstance(vae, vqgan_vae.VQGanVAE):
            plain = vae.decode
            def decode(x, plain=plain):
                LATENTS.append(x * 2 - 1)  # takes the (x + 1) / 2 back
                return plain(LATENTS[-1])

            vae.decode = decode
    return decoder


def roundings_of_latents(decoder, d, sampling):
    """How far latents may move before their codes are chosen, in roundings of the longest: the tests see only the codes' pictures.

    @return None if some are NaN, which codes hide
    """
    def latents():
        LATENTS.clear()
        make_decoder.sample(decoder, d, sampling)
        return [latent.movedim(1, -1) for latent in LATENTS]

    one, share = latents(), 0.0
    if any(not latent.isfinite().all() for latent in one):
        return None
    for seed in make_decoder.NUDGES:
        for unet in decoder.unets:
            nudge(unet.parameters(), seed)
        for latent, moved in zip(one, latents()):
            share = max(share, float((moved - latent).norm(dim=-1).max() / latent.norm(dim=-1).max()))
        for unet in decoder.unets:
            fill(unet)
    return max(LATENT_ROUNDINGS, MOVES_ALLOWED * share / EPSILON)


def make_case(seed):
    r = random.Random(seed)
    torch.manual_seed(seed)
    d = make_decoder.draw_decoder(r)
    d["auto_normalize_img"] = True
    if len(d["unets"]) > 2:
        return None
    d["predict_x_start_for_latent_diffusion"] = r.random() < 0.4
    if not draw_latents(r, d):
        return None
    own = make_decoder.draw_extra(r, d)
    decoder = build(own)
    decoder.train()
    tensors = {}
    losses = [make_decoder.train_step(decoder, d, n, r, tensors) for n in range(1, len(d["unets"]) + 1)]
    for _ in range(5):
        sampling = make_decoder.draw_sampling(r, d) | {"inpaint": False}
        try:
            drawn, noise = make_decoder.sample_with_noise(decoder, d, sampling)
            roundings = roundings_of_latents(decoder, d, sampling)
            if roundings is None:
                continue
            with CloseChoices(roundings) as close:
                make_decoder.sample(decoder, d, sampling)
        except RuntimeError as error:
            # Attention of the reference's VAE keeps the positions of the first size that it sees: docs/parity.md.
            if "must match the size of tensor" not in str(error):
                raise
            return None
        if not close.found and 20 * noise <= 1e-2 * drawn.abs().max().item():
            break
    else:
        return None
    tensors["sample"] = drawn.numpy()
    if not all(np.isfinite(value).all() for value in tensors.values()) or not np.isfinite(losses).all():
        return None
    for number, vae in enumerate(decoder.vaes):
        if isinstance(vae, vqgan_vae.VQGanVAE):
            tensors[f"codebook{number}"] = vae.vq._codebook.embed.numpy().astype(np.float32)
    own["vae"] = [vae and {"checkpoint": "vae.pt", "model": vae} for vae in own["vae"]]
    return make_decoder.case_of(seed, d, own, tensors, sampling=sampling, sample_noise=noise, names=sorted(decoder.state_dict()))


# What lies in the repository, by the numbers of the cases and of their draws: both kinds of VAEs before the first unet and before the second.
KEPT = {1: 2, 2: 5, 5: 14, 7: 18, 10: 29, 11: 30}


def main():
    folder, arguments = folder_and_options("latent", __doc__, cases=12, kept=KEPT)
    torch.set_num_threads(1)
    write_cases(folder, make_case, arguments)


if __name__ == "__main__":
    main()
