# SPDX-License-Identifier: MIT
"""VQGAN-VAEs of random configurations, run by muse-maskgit-pytorch 0.3.5 and dalle2-pytorch 1.15.6.

    python tests/parity/make_vae.py [--seed N] [--cases N] [--out FOLDER]

One safetensors file a case: two batches of pictures, what the networks and losses make of them, every gradient of both parts, and the
codebook before and after. Weights are a function of the parameter's name, and gradients are compact, as in make_unet.py. `noise` is how
far a value moves when every weight moves by one rounding, or a twentieth of how far it moves when values at a kink change sides. What the
references cannot do is put right here: muse's classic codebook (its constructor crashes), and the loss of the discriminator without the
penalty (theirs is unbound). A case is left out if its codes hang on a rounding, if nearly all of them are the same,
or if roundings hide a gradient.
"""
import copy
import random
import warnings

warnings.filterwarnings("ignore")

import torch
from torch import nn
from vector_quantize_pytorch import VectorQuantize

import dalle2_pytorch.vqgan_vae as theirs
import muse_maskgit_pytorch.vqgan_vae as muse
from case_files import folder_and_options, write_cases
from close_choices import CloseChoices, Kinks, biases_without_gradient, hides
from make_unet import compact, rounding_noise
from waves import fill


class Features(nn.Module):
    """In the place of VGG: fixed, and smooth."""
    def __init__(self, generator):
        super().__init__()
        self.weight = torch.randn(6, 3, 4, 4, generator=generator) / 4

    def forward(self, images):
        return torch.tanh(nn.functional.conv2d(images, self.weight, stride=2)).flatten(1)


# Of VAEs, which cases have in turn. Those after the fourth are sorts of the first four, with an option that is rare among those.
SORTS = ("lookup-free", "resnet", "classic", "vit", "lookup-free", "attention resnet", "deep classic", "deep vit")


def draw_config(rng, sort):
    """@param sort one of SORTS: lookup-free and classic ones are muse's, the others dalle2's"""
    *additions, sort = sort.split()
    coin = lambda p=0.5: rng.random() < p
    kind = "muse" if sort in ("lookup-free", "classic") else "dalle2"
    vit = sort == "vit"
    layers = rng.choice([1, 2, 2, 2])
    config = {"kind": kind, "dim": 16, "channels": rng.choice([1, 3, 3]), "layers": layers,
              "l2_recon_loss": coin(), "use_hinge_loss": coin(0.6), "use_vgg_and_gan": coin(0.8), "discr_layers": rng.choice([1, 2])}
    if vit:
        config |= {"vae_type": "vit", "encdec_patch_size": rng.choice([4, 8]), "encdec_dim_head": rng.choice([4, 8]),
                   "encdec_heads": rng.choice([1, 2]), "encdec_ff_mult": rng.choice([2, 4])}
    else:
        config["encdec_resnet_groups"] = rng.choice([4, 8, 16])
        config["encdec_first_conv_kernel_size"] = rng.choice([3, 5])
        config["encdec_num_resnet_blocks"] = rng.choice([0, 1, 2]) if coin() else [rng.choice([0, 1]) for _ in range(layers)]
        if coin(0.3):
            config["encdec_layer_mults"] = [rng.choice([1, 2]) for _ in range(layers)]
        if kind == "dalle2":
            config["encdec_use_attn"] = coin() if coin() else [coin() for _ in range(layers)]
            config |= {"encdec_attn_dim_head": rng.choice([4, 8]), "encdec_attn_heads": rng.choice([1, 2])}
    if sort == "lookup-free":
        config["codebook_size"] = rng.choice([8, 16, 64])
        config["lfq_kwargs"] = {"diversity_gamma": rng.choice([1.0, 4.0]), "commitment_loss_weight": rng.choice([0.0, 0.25])}
    else:
        if kind == "muse":
            config |= {"lookup_free_quantization": False, "codebook_size": rng.choice([6, 12])}
        else:
            config["vq_codebook_size"] = rng.choice([6, 12])
        config |= {"vq_codebook_dim": rng.choice([4, 8, 16]), "vq_decay": rng.choice([0.8, 0.5]), "vq_commitment_weight": rng.choice([1.0, 0.25]),
                   "vq_kmeans_init": coin(0.8), "vq_use_cosine_sim": coin(0.6), "vq_threshold_ema_dead_code": rng.choice([0, 0, 2]),
                   "vq_rotation_trick": coin(0.7)}
    if additions:
        config["use_vgg_and_gan"] = True
    if "deep" in additions:
        config["discr_layers"] = 2
    if "attention" in additions:
        config["encdec_use_attn"] = True
    config["image_size"] = 32
    return config


def make_vae(config):
    """The reference's network."""
    own = {"kind", "lfq_kwargs", "lookup_free_quantization", "codebook_size"}
    kwargs = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items() if name not in own}
    vq = {name.removeprefix("vq_"): value for name, value in kwargs.items() if name.startswith("vq_")}
    if config["kind"] == "dalle2":
        for name in ("image_size",):
            kwargs[name] = config[name]
        return theirs.VQGanVAE(vgg=nn.Identity(), **kwargs)
    kwargs = {name: value for name, value in kwargs.items() if not name.startswith("vq_") and name != "image_size"}
    if config.get("lookup_free_quantization", True):
        return muse.VQGanVAE(vgg=nn.Identity(), codebook_size=config["codebook_size"], lfq_kwargs=config["lfq_kwargs"], **kwargs)
    vae = muse.VQGanVAE(vgg=nn.Identity(), codebook_size=4, **kwargs)
    vae.quantizer = VectorQuantize(dim=vae.encoded_dim, codebook_size=config["codebook_size"], accept_image_fmap=True, kmeans_iters=10, **vq)
    return vae


def pictures(rng_torch, channels):
    """[2, channels, 32, 32] in [0, 1), of 256ths: smooth, with so much noise that no two places of the latent are alike."""
    coarse = torch.rand(2, channels, 5, 5, generator=rng_torch)
    smooth = nn.functional.interpolate(coarse, (32, 32), mode="bicubic", align_corners=False)
    return (0.5 * smooth + 0.5 * torch.rand(2, channels, 32, 32, generator=rng_torch)).clamp(0, 1).mul(255).round() / 256


def as_bytes(images):
    """The 256ths."""
    return (images * 256).to(torch.uint8)


def quantizer_of(vae):
    return vae.quantizer if hasattr(vae, "quantizer") else vae.vq


def observe(vae, config, features, images, more, seed):
    """Everything that is compared, by its name."""
    found = {}
    if config["use_vgg_and_gan"]:
        if config["kind"] == "muse":
            vae._vgg = features
        else:
            vae.vgg = features
    vae.train()
    torch.manual_seed(seed)
    loss = vae(images.clone(), return_loss=True)
    loss.backward()
    found["loss"] = loss
    found |= {f"grad.{name}": compact(p.grad) for name, p in vae.named_parameters() if not name.startswith(("discr.", "vgg", "_vgg")) and p.grad is not None}
    found |= {f"codes_1.{name}": b.clone() for name, b in quantizer_of(vae).named_buffers() if "_codebook" in name}
    vae.zero_grad()
    if config["use_vgg_and_gan"]:
        for name, penalty in (("discr", True), ("discr_plain", False)):
            torch.manual_seed(seed + 1)
            if penalty:
                loss = vae(more.clone(), return_discr_loss=True)
            else:
                fake = (vae.decode(vae.encode(more)[0]) if config["kind"] == "muse" else vae.decode(vae.encode(more))).detach()
                loss = vae.discr_loss(vae.discr(fake), vae.discr(more))
            loss.backward()
            found[f"{name}.loss"] = loss
            found |= {f"{name}.grad.{n}": compact(p.grad) for n, p in vae.discr.named_parameters()}
            vae.zero_grad()
        found |= {f"codes_2.{name}": b.clone() for name, b in quantizer_of(vae).named_buffers() if "_codebook" in name}
    vae.eval()
    with torch.no_grad():
        found["eval.made"] = vae(more)  # and what it decodes from the latent
        if config["kind"] == "muse":
            found["latent"], found["indices"], _ = vae.encode(more)
        else:
            found["latent"] = vae.encode(more)
            found["indices"] = vae.vq(found["latent"])[1]
    return {name: value.detach().clone() for name, value in found.items()}


def losses_turn(one, moved):
    """Whether a loss moves by more than roundings do: a choice between two codes hangs on one of them. A gradient penalty also moves with
    kinks."""
    def most(name):
        return 1e-2 if "discr" in name else 1e-3

    return any(moved[name] > most(name) * max(1e-6, float(value.double().abs().max())) for name, value in one.items() if "loss" in name)


LARGEST_SHARE = 0.05  # of a gradient's largest entry, that the tests may allow


def mostly_one_code(indices):
    """Whether the decoder's map is nearly constant: norms of such maps enlarge roundings without bound."""
    return indices.flatten().unique(return_counts=True)[1].max() > 0.8 * indices.numel()


def gradients_are_noisy(one, noise):
    """Whether the tests would allow more than a twentieth of the largest entry of a gradient that is not zero."""
    gradients = {name: value for name, value in one.items() if "grad." in name}
    steady = gradients.keys() - biases_without_gradient(gradients)
    return hides(noise, LARGEST_SHARE, {name: float(gradients[name].abs().max()) for name in steady})


def make_case(number, sort):
    rng = random.Random(number)
    config = draw_config(rng, sort)
    torch.manual_seed(number)
    vae = make_vae(config)
    fill(vae)
    generator = torch.Generator().manual_seed(number)
    features, images, more = Features(generator), pictures(generator, config["channels"]), pictures(generator, config["channels"])
    codebook = {name: value.clone() for name, value in vae.state_dict().items() if "_codebook" in name}
    names = list(vae.state_dict())
    start = copy.deepcopy(vae)
    kinks = Kinks()
    with CloseChoices() as close:
        one = kinks.see(lambda: observe(vae, config, features, images, more, number))
    assert close.choices_of_codes > 0
    if close.found or mostly_one_code(one["indices"]) or any(not value.isfinite().all() for value in one.values()):
        return None
    noise = rounding_noise(
        one, start, lambda moved: kinks.see(lambda: observe(moved, config, features, images, more, number)), number)
    moved, noise = kinks.add_to(noise, lambda: observe(copy.deepcopy(start), config, features, images, more, number), one)
    sizes = [name for name in one if name.startswith("codes_") and name.endswith("cluster_size")]
    if moved["indices"] > 0 or any(moved[name] > 1e-3 for name in sizes) or losses_turn(one, moved) or gradients_are_noisy(one, noise):
        return None
    tensors = {f"codebook.{name}": value for name, value in codebook.items()}
    tensors |= {"features": features.weight, "images": as_bytes(images), "more": as_bytes(more)}
    tensors |= one
    tensors = {name: value.numpy() for name, value in tensors.items()}
    return tensors, {"config": config, "seed": number, "names": names, "noise": noise}


# What lies in the repository, by the numbers of the cases and of their draws: each sort of VAE, and both ways of most options.
KEPT = {0: 3, 1: 7, 3: 12, 5: 51, 6: 63}


def main():
    folder, arguments = folder_and_options("vae", __doc__, cases=8, kept=KEPT)
    torch.set_num_threads(1)
    write_cases(folder, make_case, arguments, SORTS)


if __name__ == "__main__":
    main()
