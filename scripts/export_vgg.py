#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the archive that the perceptual loss of a VQGAN-VAE takes its features from, out of torchvision's weights of VGG16.

    pip install torch==2.11.0 torchvision
    python scripts/export_vgg.py --weights vgg16-397923af.pth --out vgg.pt

The archive is TorchScript: pictures [n, 3, h, w] in [0, 1] in, [n, 4096] features out, those before the last layer of the classifier,
as the references take them; frozen, and without dropout. Then `"vgg_path": "vgg.pt"` in `train` of a VAE's config.

--synthetic SEED in place of --weights fills the network with numbers of a formula, for tests.
"""
import argparse
import json
import pathlib

import torch
import torchvision
from torch import nn

from export_inception import fill


@torch.jit.script
def window_means(size: int, windows: int, like: torch.Tensor) -> torch.Tensor:
    """[windows, size]: row i takes the mean from floor(i * size / windows) to ceil((i + 1) * size / windows), as AdaptiveAvgPool2d does."""
    window = torch.arange(windows, device=like.device).unsqueeze(1)
    place = torch.arange(size, device=like.device)
    begin = (window * size).div(windows, rounding_mode="floor")
    end = ((window + 1) * size + windows - 1).div(windows, rounding_mode="floor")
    return place.ge(begin).logical_and(place.lt(end)).to(like.dtype) / (end - begin)


class WindowMeans(nn.Module):
    """nn.AdaptiveAvgPool2d(7) as two products of matrices: on a GPU its own gradient has no deterministic form, theirs has."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        rows, columns = window_means(maps.size(2), 7, maps), window_means(maps.size(3), 7, maps)
        return rows.matmul(maps).matmul(columns.t())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", type=pathlib.Path)
    source.add_argument("--synthetic", type=int, metavar="SEED")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.weights is not None and not arguments.weights.is_file():
        parser.error(f"--weights: there is no file {arguments.weights}: download it first (see the top of --help)")
    net = torchvision.models.vgg16(weights=None)
    if arguments.synthetic is not None:
        fill(net, arguments.synthetic)
        weights = f"synthetic {arguments.synthetic}"
    else:
        try:
            net.load_state_dict(torch.load(arguments.weights, map_location="cpu", weights_only=True))
        except RuntimeError as error:
            raise SystemExit(f"{arguments.weights}: expected torchvision's weights of vgg16\n{str(error)[:400]}")
        weights = str(arguments.weights.name)
    net.classifier = nn.Sequential(*net.classifier[:-2])
    net.avgpool = torch.jit.script(WindowMeans())
    net = net.eval().requires_grad_(False)
    with torch.no_grad():
        script = torch.jit.freeze(torch.jit.trace(net, torch.rand(2, 3, 64, 64)))
    torch.jit.save(script, arguments.out, _extra_files={"dalle2.json": json.dumps({"kind": "vgg", "weights": weights})})
    print(f"{arguments.out}: {arguments.out.stat().st_size / 2**20:.1f} MiB, weights {weights}")


if __name__ == "__main__":
    main()
