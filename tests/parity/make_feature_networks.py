# SPDX-License-Identifier: MIT
"""Archives as FeatureNetwork and PerceptualDistance take them, right and wrong ones, and what the right ones answer.

    python make_feature_networks.py --out fixtures [--seed 0]      writes fixtures/feature_networks/

The networks are a few products of some pixels of the resized picture, so that the files are small; that the Inception network
itself gives torchmetrics' features is what tests/metrics/inception_by_the_reference.py looks at. Pictures are resized by
torch-fidelity (tf1), torch with antialiasing, as torchmetrics does (antialias), and Pillow (clean). They are a function of their
place (see `picture`), so they need no room: the reader makes them anew. All features are stored of some pictures only.
"""
import json
import pickle
import random
import warnings
from typing import Dict

warnings.filterwarnings("ignore")

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x

from case_files import folder_and_options, write_case

WIDTHS = {"64": 64, "192": 192, "768": 768, "2048": 2048, "logits_unbiased": 1008}
SIDE = 299
WIDE = (1, "tf1")  # the one case with all layers: its pictures and its way of resizing


def picture(number, count, height, width):
    """[count, 3, height, width] of bytes. As in tests/metrics/feature_network_pictures.h."""
    n, c, y, x = np.ogrid[:count, :3, :height, :width]
    value = ((x + 13 * number + 1) * (y + 7 * c + 3) * 2654435761 + (x * x + 31 * y * y + 97 * n) * 40503) >> 7
    return torch.from_numpy((value & 255).astype(np.uint8))


def pixels(x: Tensor) -> Tensor:
    """[n, 12], of places whose values hang on how the picture was resized."""
    return torch.cat([x[:, :, 37, 251], x[:, :, 298, 0], x[:, :, 150, 149], x[:, :, 3, 298]], 1)


def sums(generator):
    """Makes four numbers of the twelve pixels, so that a wide layer needs a third of the room."""
    linear = nn.Linear(12, 4, bias=False)
    linear.weight = nn.Parameter(torch.randn(4, 12, generator=generator) / 4)
    return linear


class Ours(nn.Module):
    def __init__(self, generator, deep=2048):
        super().__init__()
        widths = [64, 192, 768, deep, 1008]
        self.maps = nn.ParameterList([nn.Parameter(torch.randn(w, 12 if w == 64 else 4, generator=generator) / 4) for w in widths])
        self.sums = sums(generator)

    def forward(self, images: Tensor, deepest: str) -> Dict[str, Tensor]:
        x = pixels(images)
        few = self.sums(x)
        found: Dict[str, Tensor] = {}
        names = ["64", "192", "768", "2048", "logits_unbiased"]
        for i, m in enumerate(self.maps):
            found[names[i]] = F.linear(x if i == 0 else few, m)
            if names[i] == deepest:
                return found
        return found


class StyleGan(nn.Module):
    """The signature of StyleGAN2-ADA's archive: bytes of any size in."""
    def __init__(self, generator):
        super().__init__()
        self.sums = sums(generator)
        self.features = nn.Parameter(torch.randn(2048, 4, generator=generator) / 4)
        self.classes = nn.Parameter(torch.randn(1008, 4, generator=generator) / 4)

    def forward(self, img: Tensor, return_features: bool = False, use_fp16: bool = False, no_output_bias: bool = False) -> Tensor:
        x = F.interpolate(img.float(), (299, 299), mode="bilinear", align_corners=False)
        x = self.sums(pixels((x - 128) / 128))
        if return_features:
            return F.linear(x, self.features)
        return F.linear(x, self.classes).softmax(1)


class Pairs(nn.Module):
    def __init__(self, scalar=False):
        super().__init__()
        self.scalar = scalar

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        distance = (one - other).square().mean([1, 2, 3])
        return distance.mean() if self.scalar else distance


class Encoder(nn.Module):
    """A network for evaluate.FD: normalised pictures of 40 pixels in, five features out."""
    def __init__(self, generator):
        super().__init__()
        self.map = nn.Parameter(torch.randn(5, 12, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.cat([x[:, :, 5, 33], x[:, :, 39, 0], x[:, :, 20, 19], x[:, :, 1, 39]], 1), self.map)


class OfFew(nn.Module):
    """Takes what it is tried with at the start, and fails in use."""
    def forward(self, images: Tensor) -> Tensor:
        assert images.size(0) <= 2, "too many pictures at once"
        return images.mean([2, 3])


class OfPictures(nn.Module):
    """In the place of VGG16 for a VAE's perceptual loss."""
    def __init__(self, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, 4, 4, generator=generator) / 4)

    def forward(self, images: Tensor) -> Tensor:
        return torch.tanh(F.conv2d(images, self.weight, stride=2)).flatten(1)


class OfWhite(nn.Module):
    """Likewise, with features that are not finite of a white picture."""
    def forward(self, images: Tensor) -> Tensor:
        is_white = (images.flatten(1).amin(1) > 0.99).float()
        return F.avg_pool2d(images, 4).flatten(1) / (1 - is_white).unsqueeze(1)


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def resized(images, how, side=SIDE):
    """[n, 3, h, w] float32 of bytes."""
    if how == "tf1":
        return interpolate_bilinear_2d_like_tensorflow1x(images, size=(side, side), align_corners=False)
    if how == "antialias":
        return F.interpolate(images, (side, side), mode="bilinear", align_corners=False, antialias=True)
    planes = [[Image.fromarray(p.numpy(), mode="F").resize((side, side), Image.BICUBIC) for p in image] for image in images]
    return torch.stack([torch.stack([torch.from_numpy(np.asarray(p).copy()) for p in image]) for image in planes])


def script(module, path, about=None):
    torch.jit.save(torch.jit.script(module.eval()), path, _extra_files={"dalle2.json": json.dumps(about)} if about else {})


def main():
    folder, arguments = folder_and_options("feature_networks", __doc__)
    rng, generator = random.Random(arguments.seed), torch.Generator().manual_seed(arguments.seed)
    ours, stylegan = Ours(generator), StyleGan(generator)
    script(ours, folder / "ours.pt", {"kind": "inception", "weights": "synthetic", "widths": WIDTHS, "side": SIDE})
    frozen = torch.jit.freeze(torch.jit.script(ours.eval().requires_grad_(False)))  # as scripts/export_inception.py leaves it
    torch.jit.save(frozen, folder / "frozen.pt", _extra_files={"dalle2.json": json.dumps({"kind": "inception"})})
    script(stylegan, folder / "stylegan.pt")
    script(Ours(generator, deep=100), folder / "narrow.pt", {"kind": "inception"})
    script(Strange(), folder / "strange.pt")
    script(Pairs(), folder / "lpips.pt", {"kind": "lpips", "net": "alex"})
    script(Pairs(scalar=True), folder / "lpips_scalar.pt", {"kind": "lpips", "net": "alex"})
    torch.save({"fc.weight": torch.zeros(2)}, folder / "weights.pth")
    (folder / "network.pkl").write_bytes(pickle.dumps({"class_name": "training.networks.Generator"}))
    (folder / "cut.pt").write_bytes((folder / "ours.pt").read_bytes()[:5000])
    (folder / "empty.pt").write_bytes(b"")

    sizes = [(8, 8), (32, 32), (rng.randint(2, 70), rng.randint(2, 70)), (299, 299), (rng.randint(300, 400), rng.randint(300, 400))]
    shown = [picture(number, 2 if height < SIDE else 1, height, width) for number, (height, width) in enumerate(sizes)]
    tensors = {}
    for number, images in enumerate(shown):
        for how in ("tf1", "antialias", "clean"):
            with torch.no_grad():
                found = ours((resized(images.float(), how) - 128) / 128, "logits_unbiased")
            layers = ("64", "2048", "logits_unbiased") if (number, how) == WIDE else ("64",)
            tensors |= {f"{number}.{how}.{layer}": found[layer].contiguous() for layer in layers}
        with torch.no_grad():
            features = stylegan(images, return_features=True)
            tensors[f"{number}.stylegan.2048"] = (features if number == WIDE[0] else features[:, :64]).contiguous()
            if number == WIDE[0]:
                tensors[f"{number}.stylegan.classes"] = stylegan(images, no_output_bias=True).contiguous()
    write_case(folder, "expected", tensors, {"sizes": sizes, "counts": [len(images) for images in shown]})

    encoder, encoded = Encoder(generator), {}
    script(encoder, folder / "encoder.pt")
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    for number in range(len(sizes)):
        for how in ("tf1", "antialias", "clean"):
            with torch.no_grad():
                encoded[f"{number}.{how}"] = encoder((resized(shown[number].float(), how, 40) / 255 - mean) / std)
    script(OfPictures(generator).requires_grad_(False), folder / "pictures.pt", {"kind": "vgg", "weights": "synthetic"})
    script(OfFew(), folder / "few.pt")
    script(OfWhite(), folder / "white.pt")
    write_case(folder, "encoded", encoded, {"sizes": sizes})
    for path in folder.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main()
