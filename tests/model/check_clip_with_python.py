# SPDX-License-Identifier: MIT
"""open_clip loads the CLIPs that we write, strictly, and gives the same features.

    python tests/model/check_clip_with_python.py build/bin/test_model
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")

import open_clip
import torch
from safetensors.torch import load_file
from torchvision.transforms import Normalize

# Sums in another order.
TOLERANCE = 2e-5


def close(actual, expected, what):
    error = (actual - expected).abs().max().item() / expected.abs().max().item()
    assert error < TOLERANCE, (what, error)


def check(folder):
    config = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))
    model_config = dict(config["model_cfg"])
    expected = load_file(str(folder / "features.safetensors"))
    normalize = Normalize(config["preprocess_cfg"]["mean"], config["preprocess_cfg"]["std"])
    for name in ("open_clip_model.safetensors", "open_clip_pytorch_model.pt"):
        model = open_clip.CLIP(**model_config)
        open_clip.load_checkpoint(model, str(folder / name), strict=True)
        model.eval()
        with torch.no_grad():
            close(model.encode_image(normalize(expected["images"])), expected["image_features"], name)
            close(model.encode_text(expected["tokens"]), expected["text_features"], name)
    print(folder.name, "ok")


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "[write_for_python]"], check=True, env={**os.environ, "DALLE2_PYTHON_CHECK_DIR": folder})
        for name in ("vit", "resnet"):
            check(pathlib.Path(folder) / name)


if __name__ == "__main__":
    main()
