# SPDX-License-Identifier: MIT
"""Runs of a VQGAN-VAE: files, resume, ranks, and what can be wrong with a config, a folder, a network or a checkpoint."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile
import unittest

import harness
from harness import BINARY, ROOT, EndToEnd, checkpoint_content, main, needs_reference, records, run, run_reference

FEATURES = ROOT / "tests" / "parity" / "fixtures" / "feature_networks" / "pictures.pt"

THEIR_STATE = """
import json, sys, torch
import muse_maskgit_pytorch.vqgan_vae as muse
import torch.nn as nn
vae = muse.VQGanVAE(dim=16, layers=2, codebook_size=64, discr_layers=1, vgg=nn.Identity())
print(vae.load_state_dict(torch.load(sys.argv[1], weights_only=True)))
from ema_pytorch import EMA
ema = EMA(vae, update_after_step=0, update_every=1)
print(ema.load_state_dict(torch.load(sys.argv[2], weights_only=True)))
vae.eval()
x = torch.linspace(0, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
with torch.no_grad():
    print(json.dumps(vae(x).flatten()[::97].tolist()))
"""


class Vae(EndToEnd):
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
        config = {
            "vae": {"dim": 16, "layers": 2, "codebook_size": 64, "discr_layers": 1, **(vae or {})},
            "data": {"folder": str(self.pictures), "image_size": 32, "batch_size": 4, "valid_frac": 0.2, **(data or {})},
            "train": {"num_train_steps": 12, "device": "cpu", "vgg_path": str(FEATURES), "save_results_every": 5, "save_model_every": 5,
                      "apply_grad_penalty_every": 2, "log_every_n_updates": 2, **(train or {})},
            "tracker": {"data_path": name, "overwrite_data_path": True, "log": {"log_type": "console", "auto_resume": True},
                        "load": {"load_from": "local", "file_path": f"{name}/checkpoint.pth", "only_auto_resume": True},
                        "save": {"save_to": "local", "save_latest_to": f"{name}/latest.pth", "save_best_to": f"{name}/best.pth"}},
            "seed": 3, **more}
        return harness.write_config(self.dir / f"{name}.json", config)

    def same(self, one, other):
        ours, theirs = (checkpoint_content(self.dir / name / "checkpoint.pth", self.dir) for name in (one, other))
        self.assertEqual(ours[0].keys(), theirs[0].keys())
        self.assertGreater(len(ours[0]), 100)
        for key, value in ours[0].items():
            self.assertEqual(value, theirs[0][key], key)

    def test_a_run_leaves_what_muses_trainer_leaves(self):
        done = self.train(self.write("run"))
        self.assertIn("pictures: 48 train, 12 val; batches of 4", " ".join(done.stdout.split()))
        self.assertIn("training complete", done.stdout)
        results = sorted(path.name for path in (self.dir / "run" / "results").iterdir())
        names = [f"{n}{kind}" for n in (0, 5, 10) for kind in (".png", ".ema.png")]
        names += [f"vae.{n}{kind}" for n in (0, 5, 10) for kind in (".pt", ".ema.pt")]
        self.assertEqual(results, sorted(names))
        steps = [record for record in records(self.dir / "run") if "reconstruction_loss" in record]
        self.assertEqual([record["step"] for record in steps], [1, 3, 5, 7, 9, 11])
        for key in ("loss", "discr_loss", "perceptual_loss", "generator_loss", "gan_weight", "quantizer_loss", "codebook_usage",
                    "codebook_perplexity", "grad_norm", "discr_grad_norm"):
            self.assertIn(key, steps[-1])
        self.assertLess(steps[-1]["reconstruction_loss"], steps[0]["reconstruction_loss"])
        self.assertGreater(steps[-1]["codebook_usage"], 0)
        self.assertLessEqual(steps[-1]["codebook_perplexity"], 64)
        validated = [record for record in records(self.dir / "run") if "validation_reconstruction_loss" in record]
        self.assertEqual(len(validated), 3)
        alone = json.loads(run("evaluate", "--config", "run.json", "--checkpoint", "run/checkpoint.pth", cwd=self.dir, check=0).stdout)
        self.assertEqual(alone["pictures"], 12)
        self.assertLess(alone["mean_square_error"], alone["mean_absolute_error"])

    def test_a_stopped_run_goes_on_bit_for_bit(self):
        for accumulated in (1, 2):
            settings = {"num_train_steps": 30, "grad_accum_every": accumulated, "save_results_every": 1000, "save_model_every": 1000}
            whole, cut = f"whole{accumulated}", f"cut{accumulated}"
            self.train(self.write(whole, train=settings))
            config = self.write(cut, train={**settings, "num_train_steps": 30})
            process = subprocess.Popen([BINARY, "--config", config], cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            for line in process.stdout:
                if line.startswith("step 9 "):
                    process.send_signal(signal.SIGTERM)
                    break
            output = process.communicate(timeout=120)[0]
            self.assertEqual(process.returncode, 75, output)
            self.train(config)
            self.same(whole, cut)

    def test_a_classic_codebook_and_the_reconstruction_alone(self):
        alone = {"use_vgg_and_gan": False, "lookup_free_quantization": False, "vq_codebook_dim": 8, "vq_threshold_ema_dead_code": 1}
        self.train(self.write("alone", vae=alone, train={"vgg_path": None}))
        last = [record for record in records(self.dir / "alone") if "reconstruction_loss" in record][-1]
        self.assertNotIn("perceptual_loss", last)
        self.assertNotIn("discr_loss", last)
        theirs = {"kind": "dalle2", "image_size": 32, "codebook_size": None, "vq_codebook_size": 32, "vq_codebook_dim": 8,
                  "encdec_attn_dim_head": 8, "encdec_attn_heads": 2}
        self.train(self.write("theirs", vae=theirs))
        self.assertEqual(json.loads(run("evaluate", "--config", "theirs.json", "--checkpoint", "theirs/checkpoint.pth", cwd=self.dir,
                                        check=0).stdout)["pictures"], 12)

    def test_two_processes_train_as_one(self):
        # One process with batches of 8 has the samples of two with 4.
        settings = {"num_train_steps": 5, "apply_grad_penalty_every": 1, "lr": 1e-4}
        vae = {"use_vgg_and_gan": False, "lookup_free_quantization": False, "vq_codebook_dim": 8, "vq_kmeans_init": False}
        self.train(self.write("one", vae=vae, data={"batch_size": 8}, train=settings))
        run("--config", self.write("two", vae=vae, train=settings), "--nproc-per-node", 2, cwd=self.dir, check=0)
        losses = {name: [record["loss"] for record in records(self.dir / name) if "reconstruction_loss" in record] for name in ("one", "two")}
        self.assertEqual(len(losses["one"]), 3)
        for one, two in zip(losses["one"], losses["two"]):
            self.assertAlmostEqual(one, two, delta=2e-4 * one)
        usage = {name: [record["codebook_usage"] for record in records(self.dir / name) if "codebook_usage" in record] for name in losses}
        self.assertEqual(usage["one"], usage["two"])

    def test_files_that_cannot_be_read_are_left_out_and_told(self):
        broken = self.dir / "some"
        shutil.copytree(self.pictures, broken)
        chosen = sorted(broken.rglob("*.jpg")) or sorted(broken.rglob("*.png"))
        chosen[0].write_bytes(chosen[0].read_bytes()[:200])
        (broken / "odd.PNG").write_bytes(b"no picture")
        done = self.train(self.write("run", data={"folder": str(broken), "valid_frac": 0}, train={"num_train_steps": 16}))
        self.assertIn("pictures: 61 train, 61 val", " ".join(done.stdout.split()))
        told = " ".join((done.stdout + done.stderr).split())
        self.assertIn("odd.PNG", told)
        self.assertIn(chosen[0].name, told)

    def test_what_is_wrong_is_told_at_the_start(self):
        empty = self.dir / "empty"
        empty.mkdir()
        for number, (sections, code, text) in enumerate([
                ({"data": {"folder": str(empty)}}, 3, "expected pictures ending in jpg, jpeg, png or webp, here or in folders below, found none"),
                ({"data": {"folder": "absent"}}, 3, "/data/folder: absent: there is no such folder"),
                ({"data": {"image_size": 30}}, 2, "/data/image_size: must be divisible by 4 (2 to the power of vae.layers), got 30"),
                ({"vae": {"discr_layers": 4}}, 2, "/data/image_size: the discriminator of vae.discr_layers = 4 needs pictures of 64 pixels or more, got 32"),
                ({"vae": {"codebook_size": 60}}, 2, "/vae/codebook_size: must be a power of two for lookup-free quantisation, got 60"),
                ({"vae": {"channels": 4}}, 2, "/vae/channels: must be >= 1 and <= 3, got 4"),
                ({"vae": {"dim": 20}}, 2, "/vae/dim: must be divisible by encdec_resnet_groups (16), got 20"),
                ({"vae": {"kind": "dalle2", "codebook_size": None}}, 2, "/vae/image_size: is needed by the dalle2 kind"),
                ({"vae": {"vae_type": "vit"}}, 2, '/vae/vae_type: "vit" is the dalle2 kind\'s'),
                ({"train": {"vgg_path": None}}, 2, "/train/vgg_path: must be given"),
                ({"train": {"vgg_path": "absent.pt"}}, 2, "/train/vgg_path: there is no file absent.pt"),
                ({"train": {"vgg_path": str(FEATURES.parent / "strange.pt")}}, 2, "expected features [2, F], got [2, 3, 32, 32]"),
                ({"train": {"lora": {"rank": 4}}}, 2, "/train/lora: has no place here"),
                ({"data": {"valid_frac": 0.999}}, 3, "leaves none for training")]):
            with self.subTest(text):
                config = self.write(f"wrong{number}", **sections)
                for more in ([], ["--dry-run"]):
                    done = self.train(config, *more, check=code)
                    self.assertIn(text, " ".join(done.stderr.split()))
                self.assertFalse((self.dir / f"wrong{number}" / "checkpoint.pth").exists())
        self.train(self.write("run", train={"num_train_steps": 1}))
        other = self.write("run", vae={"lookup_free_quantization": False, "codebook_size": 32}, train={"num_train_steps": 2})
        done = self.train(other, check=2)
        self.assertIn("/vae/lookup_free_quantization", " ".join(done.stderr.split()))
        done = run("sample", "--checkpoint", "run/checkpoint.pth", "--out", "drawn", cwd=self.dir, check=3)
        self.assertIn("expected a checkpoint of a decoder, got one of a vae", " ".join(done.stderr.split()))

    def test_a_dry_run_tells_sizes_and_writes_nothing(self):
        done = self.train(self.write("dry"), "--dry-run")
        for text in ("train: 48 pictures", "val: 12 pictures", "steps: 12", "autoencoder", "discriminator"):
            self.assertIn(text, done.stdout)
        self.assertFalse((self.dir / "dry").exists())

    @needs_reference
    def test_files_are_read_by_the_reference(self):
        self.train(self.write("run", train={"num_train_steps": 6}))
        results = self.dir / "run" / "results"
        printed = run_reference(THEIR_STATE, results / "vae.5.pt", results / "vae.5.ema.pt", cwd=self.dir)
        self.assertEqual(printed.count("<All keys matched successfully>"), 2)


if __name__ == "__main__":
    main()
