#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the archive that LPIPS is computed with, out of torchvision's published weights of its backbone.

    pip install torch==2.11.0 torchvision torchmetrics[image]
    python scripts/export_lpips.py --net vgg --weights vgg16-397923af.pth --out lpips_vgg.pt

Backbones: alex (alexnet-owt-7be5be79.pth), vgg (vgg16-397923af.pth), squeeze (squeezenet1_1-b8a52dc0.pth). The linear layers come
with torchmetrics. The archive is TorchScript: two batches of pictures in [-1, 1] in, their distances out. Then
`"weights_path": "lpips_vgg.pt"` in the `LPIPS` of a config's `evaluate`, beside the same `net_type`.

--synthetic SEED in place of --weights fills the backbone with numbers of a formula, for tests.
"""
import argparse
import hashlib
import json
import pathlib

import torch
import torchmetrics.functional.image.lpips as lpips
from torch import nn

from export_inception import fill

NETS = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}


class Distance(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, one, other):
        return self.net(one, other).flatten()


def load(arguments):
    """The network, and where its weights come from."""
    original = lpips._get_tv_model_features
    lpips._get_tv_model_features = lambda net, pretrained=False: original(net, False)
    try:
        net = lpips._NoTrainLpips(net=arguments.net)
    finally:
        lpips._get_tv_model_features = original
    if arguments.synthetic is not None:
        fill(net.net, arguments.synthetic)
        return net, f"synthetic {arguments.synthetic}"
    import torchvision
    whole = getattr(torchvision.models, NETS[arguments.net])(weights=None)
    try:
        whole.load_state_dict(torch.load(arguments.weights, map_location="cpu", weights_only=True))
    except RuntimeError as error:
        raise SystemExit(f"{arguments.weights}: expected torchvision's weights of {NETS[arguments.net]}\n{str(error)[:400]}")
    # The slices hold the backbone's layers under their numbers.
    layers = dict(whole.features.named_children())
    with torch.no_grad():
        for name, parameter in net.net.named_parameters():
            parts = name.split(".")
            place = 2 if arguments.net == "squeeze" else 1
            target = layers[parts[place]]
            for part in parts[place + 1:]:
                target = getattr(target, part)
            parameter.copy_(target)
    return net, hashlib.sha256(arguments.weights.read_bytes()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", type=pathlib.Path)
    source.add_argument("--synthetic", type=int, metavar="SEED")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.weights is not None and not arguments.weights.is_file():
        parser.error(f"--weights: there is no file {arguments.weights}: download it first (see the top of --help)")
    net, weights = load(arguments)
    net.requires_grad_(False)
    example = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        script = torch.jit.freeze(torch.jit.trace(Distance(net).eval(), (example, 1 - example)))
    about = {"kind": "lpips", "net": arguments.net, "weights": weights}
    torch.jit.save(script, arguments.out, _extra_files={"dalle2.json": json.dumps(about)})
    print(f"{arguments.out}: {arguments.out.stat().st_size / 2**20:.1f} MiB, weights {weights}")


if __name__ == "__main__":
    main()
