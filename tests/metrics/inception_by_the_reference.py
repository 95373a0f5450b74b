# SPDX-License-Identifier: MIT
"""Metrics through the Inception network and the backbones of LPIPS, with synthetic weights, against torchmetrics and torch-fidelity.

    python inception_by_the_reference.py build/bin/test_metrics [--real FOLDER --generated FOLDER] [--count 40] [--side 64] [--keep FOLDER]

Makes the archives with scripts/export_*.py, lets the references compute their figures of two sets of pictures, and runs the tests tagged
[networks] of test_metrics, which compute ours and compare. Without folders the sets are pictures of `shards demo` ($DALLE2_TRAIN), the
second ones turned and blurred. What the references draw at random is drawn here as ours is, and handed to them.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import warnings

warnings.filterwarnings("ignore")

import numpy as np
import torch
import torch_fidelity.feature_extractor_inceptionv3 as inception_module
import torchvision
import torchmetrics.functional.image.lpips as lpips
from PIL import Image, ImageFilter
from safetensors.torch import save_file
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "tests" / "parity"))
import export_inception
import export_lpips
from make_metrics import with_permutations

SEED, SPLITS, SUBSETS, SUBSET_SIZE, GAMMA = 5, 4, 6, 20, 5.0  # as in networks_test.cpp


def pictures_of(folder, count, side):
    paths = sorted(p for p in pathlib.Path(folder).rglob("*") if p.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))[:count]
    if len(paths) < count:
        raise SystemExit(f"{folder}: expected {count} pictures, found {len(paths)}")
    return [Image.open(path).convert("RGB").resize((side, side), Image.LANCZOS) for path in paths]


def demo_pictures(scratch, count, side):
    subprocess.run([os.environ["DALLE2_TRAIN"], "shards", "demo", "--out", scratch / "demo", "--num", str(2 * count), "--image-size", str(side)],
                   check=True, stdout=subprocess.DEVNULL)
    found = []
    for path in sorted((scratch / "demo").glob("*.tar")):
        with tarfile.open(path) as tar:
            found += [Image.open(tar.extractfile(m)).convert("RGB") for m in tar if m.name.endswith((".jpg", ".png"))]
    changed = [picture.rotate(17).filter(ImageFilter.GaussianBlur(1)) for picture in found[count:2 * count]]
    return found[:count], changed


def as_bytes(pictures):
    return torch.stack([torch.from_numpy(np.asarray(p).copy()).permute(2, 0, 1) for p in pictures]).contiguous()


def permutations(purpose, counts):
    generator = torch.Generator().manual_seed(SEED * 16 + purpose)
    return [torch.randperm(count, generator=generator) for count in counts]


def synthetic(metric):
    export_inception.fill(metric.inception, 0)
    return metric


def make_weights(folder):
    """Files as the authors publish them, with numbers of a formula."""
    torch.save(export_inception.synthetic_network(0).state_dict(), folder / "inception.pth")
    for net, name in export_lpips.NETS.items():
        whole = getattr(torchvision.models, name)(weights=None)
        export_inception.fill(whole, 0)
        torch.save(whole.state_dict(), folder / f"{net}.pth")


def expected(folder, real, generated):
    inception_module.load_state_dict_from_url = lambda *a, **k: {}
    inception_module.FeatureExtractorInceptionV3.load_state_dict = lambda self, *a, **k: None
    found = {}
    for feature in (64, 192, 768, 2048):
        for antialias in (True, False):
            if antialias and feature == 2048:
                continue  # seconds of eigenvalues, and no other code
            fid = synthetic(FrechetInceptionDistance(feature=feature, antialias=antialias))
            fid.update(real, real=True)
            fid.update(generated, real=False)
            found[f"FID.{'antialias' if antialias else 'tf1'}.{feature}"] = fid.compute().item()
    inception = synthetic(InceptionScore(splits=SPLITS))
    inception.update(generated)
    found["IS.antialias"] = with_permutations(permutations(1, [len(generated)]), inception.compute)
    kid = synthetic(KernelInceptionDistance(feature=192, gamma=GAMMA, subsets=SUBSETS, subset_size=SUBSET_SIZE))
    kid.update(real, real=True)
    kid.update(generated, real=False)
    drawn = permutations(2, [len(real)] * SUBSETS + [len(generated)] * SUBSETS)
    found["KID.antialias"] = with_permutations([p for pair in zip(drawn[:SUBSETS], drawn[SUBSETS:]) for p in pair], kid.compute)
    for net, name in export_lpips.NETS.items():
        whole = getattr(torchvision.models, name)(weights=None)
        whole.load_state_dict(torch.load(folder / f"{net}.pth"))
        lpips._get_tv_model_features = lambda *a, **k: whole.features
        network = lpips._NoTrainLpips(net=net)
        with torch.no_grad():
            found[f"LPIPS.{net}"] = network(real / 127.5 - 1, generated / 127.5 - 1).mean().item()
    return found


def golden_pictures():
    """Sines, as the golden values of networks_test.cpp were made from: two sets of six, and two pairs of 64 pixels."""
    def waves(phase):
        angle = 0.013 * np.arange(6 * 3 * 32 * 32, dtype=np.float64) * (1 + 0.1 * phase) + phase
        return torch.from_numpy((np.sin(angle) * 0.5 + 0.5).astype(np.float32)).reshape(6, 3, 32, 32)
    real, generated = waves(0.0), waves(2.0)
    pairs = {f"{name}_64": torch.nn.functional.interpolate(images[:2], 64).contiguous()
             for name, images in (("real", real), ("generated", generated))}
    return {"real": real, "generated": generated, **pairs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--real", type=pathlib.Path)
    parser.add_argument("--generated", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--keep", type=pathlib.Path, help="where archives and pictures go (default: a folder that is removed)")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory(prefix="dalle2-networks-") as scratch:
        folder = arguments.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        make_weights(folder)
        subprocess.run([sys.executable, ROOT / "scripts/export_inception.py", "--weights", folder / "inception.pth", "--out",
                        folder / "inception.pt"], check=True)
        for net in export_lpips.NETS:
            subprocess.run([sys.executable, ROOT / "scripts/export_lpips.py", "--net", net, "--weights", folder / f"{net}.pth", "--out",
                            folder / f"lpips_{net}.pt"], check=True)
            # The golden values' weights follow the names in the network of LPIPS, not torchvision's.
            subprocess.run([sys.executable, ROOT / "scripts/export_lpips.py", "--net", net, "--synthetic", "0", "--out",
                            folder / f"lpips_golden_{net}.pt"], check=True)
        if arguments.real:
            sets = [pictures_of(each, arguments.count, arguments.side) for each in (arguments.real, arguments.generated)]
        else:
            sets = demo_pictures(folder, arguments.count, arguments.side)
        real, generated = map(as_bytes, sets)
        figures = expected(folder, real, generated)
        print(json.dumps(figures, indent=1), flush=True)
        save_file({"real": real, "generated": generated}, folder / "pictures.safetensors", metadata={"json": json.dumps(figures)})
        save_file(golden_pictures(), folder / "golden.safetensors")
        sys.exit(subprocess.run([arguments.binary, "[networks]"], env={**os.environ, "DALLE2_METRIC_NETWORKS": str(folder)}).returncode)


if __name__ == "__main__":
    main()
