#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the archive that FID, IS and KID take their features from, out of the published weights of the Inception network.

    pip install torch==2.11.0 torch-fidelity
    python scripts/export_inception.py --weights weights-inception-2015-12-05-6726825d.pth --out inception.pt

The weights are those of torch-fidelity (weights-inception-2015-12-05-6726825d.pth) or pytorch-fid
(pt_inception-2015-12-05-6726825d.pth), the same numbers. The archive is TorchScript: pictures of 299 by 299 pixels,
(bytes - 128) / 128, in; features by the name of their layer out, of all layers up to the one asked for. Then
`"feature_extractor_weights_path": "inception.pt"` in the `FID`, `IS` and `KID` of a config's `evaluate`.

--synthetic SEED in place of --weights fills the network with numbers of a formula, for tests: such an archive says nothing
about pictures.
"""
import argparse
import hashlib
import json
import math
import pathlib
from typing import Dict

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_fidelity import feature_extractor_inceptionv3 as module
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

WIDTHS = {"64": 64, "192": 192, "768": 768, "2048": 2048, "logits_unbiased": 1008}


class Features(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.first = nn.Sequential(net.Conv2d_1a_3x3, net.Conv2d_2a_3x3, net.Conv2d_2b_3x3, net.MaxPool_1)
        self.second = nn.Sequential(net.Conv2d_3b_1x1, net.Conv2d_4a_3x3, net.MaxPool_2)
        self.third = nn.Sequential(net.Mixed_5b, net.Mixed_5c, net.Mixed_5d, net.Mixed_6a, net.Mixed_6b, net.Mixed_6c, net.Mixed_6d,
                                   net.Mixed_6e)
        self.fourth = nn.Sequential(net.Mixed_7a, net.Mixed_7b, net.Mixed_7c)
        self.classes = nn.Parameter(net.fc.weight.detach().clone(), requires_grad=False)

    def forward(self, images: Tensor, deepest: str) -> Dict[str, Tensor]:
        found: Dict[str, Tensor] = {}
        x = self.first(images)
        found["64"] = x.mean([2, 3])
        if deepest == "64":
            return found
        x = self.second(x)
        found["192"] = x.mean([2, 3])
        if deepest == "192":
            return found
        x = self.third(x)
        found["768"] = x.mean([2, 3])
        if deepest == "768":
            return found
        x = self.fourth(x).mean([2, 3])
        found["2048"] = x
        if deepest == "2048":
            return found
        found["logits_unbiased"] = F.linear(x, self.classes)
        return found


def fill(module, seed):
    """Numbers by name and place, of the size that keeps activations alive."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            wave = torch.sin(0.7 * torch.arange(p.numel(), dtype=torch.float64) + sum(name.encode()) % 97 + seed)
            if p.ndim >= 2:
                value = wave * 1.2 / math.sqrt(p[0].numel())
            else:
                value = 0.1 * wave if name.endswith("bias") else 1 + 0.1 * wave
            p.copy_(value.float().reshape(p.shape))


def network():
    """torch-fidelity's, without the download of its weights."""
    original = FeatureExtractorInceptionV3.load_state_dict, module.load_state_dict_from_url
    module.load_state_dict_from_url = lambda *a, **k: {}
    FeatureExtractorInceptionV3.load_state_dict = lambda self, *a, **k: None
    try:
        return FeatureExtractorInceptionV3("inception", list(WIDTHS))
    finally:
        FeatureExtractorInceptionV3.load_state_dict, module.load_state_dict_from_url = original


def synthetic_network(seed):
    net = network()
    fill(net, seed)
    return net


def load(arguments):
    """The network, and where its weights come from."""
    if arguments.synthetic is not None:
        return synthetic_network(arguments.synthetic), f"synthetic {arguments.synthetic}"
    content = arguments.weights.read_bytes()
    state = torch.load(arguments.weights, map_location="cpu", weights_only=True)
    needed = {"Conv2d_1a_3x3.conv.weight", "Mixed_7c.branch_pool.conv.weight", "fc.weight"}
    if not isinstance(state, dict) or not needed <= set(state):
        raise SystemExit(f"{arguments.weights}: expected the weights of the Inception network of 2015-12-05 as torch-fidelity or pytorch-fid "
                         f"publish them (names like {sorted(needed)[0]})")
    net = network()
    net.load_state_dict(state)
    return net, hashlib.sha256(content).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--weights", type=pathlib.Path)
    source.add_argument("--synthetic", type=int, metavar="SEED")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.weights is not None and not arguments.weights.is_file():
        parser.error(f"--weights: there is no file {arguments.weights}: download it first (see the top of --help)")
    net, weights = load(arguments)
    script = torch.jit.freeze(torch.jit.script(Features(net).eval().requires_grad_(False)))
    about = {"kind": "inception", "weights": weights, "widths": WIDTHS, "side": 299}
    torch.jit.save(script, arguments.out, _extra_files={"dalle2.json": json.dumps(about)})
    print(f"{arguments.out}: {arguments.out.stat().st_size / 2**20:.1f} MiB, weights {weights}")


if __name__ == "__main__":
    main()
