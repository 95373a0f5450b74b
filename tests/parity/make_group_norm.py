# SPDX-License-Identifier: MIT
"""Blocks and a discriminator of dalle2-pytorch's VQGAN-VAE whose norms get maps with a mean of 100 deviations, in float64.

    python tests/parity/make_group_norm.py [--seed N] [--out FOLDER]

One safetensors file a module: x, y, dy and the gradients (compact, as in make_unet.py). Weights are a function of the parameter's name;
`bias.*` are those of the convolutions before a norm. Of the discriminator also the gradients of a gradient penalty.
"""
import torch
from torch import nn

from dalle2_pytorch.vqgan_vae import Discriminator, GLUResBlock, ResBlock

from case_files import folder_and_options, write_case
from make_unet import compact
from waves import fill

MEAN_OF_DEVIATIONS = 100
OPEN_GATE = 20  # 1 / (1 + exp(-20)) is 1: a gated map keeps its mean
NEAR_A_KINK = 2e-5  # float32 of such maps may lie on the other side of LeakyReLU's


def shift_maps(module, x):
    """Gives the convolutions before the norms such biases. @return them by name"""
    biases = {}
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, (nn.Conv2d, nn.GLU, nn.GroupNorm))]
    for number, (_, layer) in enumerate(layers):
        if not isinstance(layer, nn.GroupNorm):
            continue
        gated = isinstance(layers[number - 1][1], nn.GLU)
        name, conv = layers[number - (2 if gated else 1)]
        found = []
        hook = conv.register_forward_hook(lambda _, __, y: found.append(y))
        module(x)
        hook.remove()
        value = found[0].chunk(2, dim=1)[0] if gated else found[0]
        bias = torch.full_like(conv.bias, MEAN_OF_DEVIATIONS * float(value.std()))
        if gated:
            bias[len(bias) // 2:] = OPEN_GATE
        with torch.no_grad():
            conv.bias.copy_(bias.float())
        biases[f"bias.{name}.bias"] = conv.bias.detach().float()
    return biases


def nearest_to_zero(module, x):
    """The least size of what a norm makes."""
    found = []
    hooks = [layer.register_forward_hook(lambda _, __, y: found.append(float(y.abs().min()))) for layer in module.modules()
             if isinstance(layer, nn.GroupNorm)]
    module(x)
    for hook in hooks:
        hook.remove()
    return min(found)


def write_module(folder, name, module, shape, generator):
    module.double()
    while True:
        fill(module)
        x = torch.randn(shape, generator=generator)
        biases = shift_maps(module, x.double())
        if name == "gated_block" or nearest_to_zero(module, x.double()) > NEAR_A_KINK:
            break
    own = x.double().requires_grad_()
    y = module(own)
    dy = torch.randn(y.shape, generator=generator)
    names, parameters = zip(*module.named_parameters())
    dx, *gradients = torch.autograd.grad(y, [own, *parameters], dy.double(), create_graph=True)
    tensors = {"x": x, "dy": dy, "y": y.float(), "dx": dx.float(), **biases}
    for parameter, gradient in zip(names, gradients):
        tensors[f"grad.{parameter}"] = compact(gradient)
    if name == "discriminator":
        penalty = (dx.flatten(1).norm(dim=1) - 1).square().mean()
        for parameter, gradient in zip(names, torch.autograd.grad(penalty, parameters, allow_unused=True)):
            if gradient is not None:
                tensors[f"penalty.{parameter}"] = compact(gradient)
    write_case(folder, name, tensors)


def main():
    folder, options = folder_and_options("group_norm", __doc__)
    generator = torch.Generator().manual_seed(options.seed)
    write_module(folder, "block", ResBlock(32, groups=8), (1, 32, 12, 10), generator)
    write_module(folder, "gated_block", GLUResBlock(32, groups=8), (1, 32, 12, 10), generator)
    write_module(folder, "discriminator", Discriminator([16, 16, 32], channels=3), (2, 3, 32, 24), generator)


if __name__ == "__main__":
    main()
