# SPDX-License-Identifier: MIT
"""What the tests of a VAE's runs share: pictures and a config."""
import tarfile

import harness
from harness import ROOT, EndToEnd, run

FEATURES = ROOT / "tests" / "parity" / "fixtures" / "feature_networks" / "pictures.pt"


def vae_config(pictures, name, vae=None, data=None, train=None):
    """A VAE with a discriminator that trains in seconds on pictures of 32 pixels."""
    return {
        "vae": {"dim": 16, "layers": 2, "codebook_size": 64, "discr_layers": 1, **(vae or {})},
        "data": {"folder": str(pictures), "image_size": 32, "batch_size": 4, "valid_frac": 0.2, **(data or {})},
        "train": {"num_train_steps": 12, "device": "cpu", "vgg_path": str(FEATURES), "save_results_every": 5, "save_model_every": 5,
                  "apply_grad_penalty_every": 2, "log_every_n_updates": 2, **(train or {})},
        "tracker": {"data_path": name, "overwrite_data_path": True, "log": {"log_type": "console", "auto_resume": True},
                    "load": {"load_from": "local", "file_path": f"{name}/checkpoint.pth", "only_auto_resume": True},
                    "save": {"save_to": "local", "save_latest_to": f"{name}/latest.pth", "save_best_to": f"{name}/best.pth"}},
        "seed": 3}


class VaeRuns(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pictures = cls.base / "pictures"
        run("shards", "demo", "--out", cls.base / "demo", "--num", 60, "--image-size", 32, cwd=cls.base, check=0)
        for number, path in enumerate(sorted((cls.base / "demo").glob("[0-9]*.tar"))):
            with tarfile.open(path) as tar:
                folder = cls.pictures / f"part{number}" / "deep"
                folder.mkdir(parents=True)
                for member in tar:
                    if member.name.endswith((".jpg", ".png")):
                        (folder / member.name).write_bytes(tar.extractfile(member).read())
        (cls.pictures / "notes.txt").write_text("no picture")

    def write(self, name, vae=None, data=None, train=None, **more):
        config = vae_config(self.pictures, name, vae, data, train)
        return harness.write_config(self.dir / f"{name}.json", {**config, **more})
