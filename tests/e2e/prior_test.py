# SPDX-License-Identifier: MIT
"""A diffusion prior from its config to a checkpoint: training, validation, stopping and going on."""
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import harness
from harness import BINARY, REFERENCE_PYTHON, read_npy, records, run, write_config, write_npy

DIM, ROWS, TEXT = 8, 60, 3


def unit(values):
    length = math.sqrt(sum(v * v for v in values))
    return [v / length for v in values]


def make_embeddings(folder):
    """Texts at random; an image is its text turned around, so that there is something to learn. Two files a kind."""
    draw = random.Random(1)
    texts = [unit([draw.gauss(0, 1) for _ in range(DIM)]) for _ in range(ROWS)]
    images = [unit([-v for v in reversed(text)]) for text in texts]
    for name, rows in (("images", images), ("texts", texts)):
        (folder / name).mkdir()
        for part, (begin, end) in enumerate(((0, 25), (25, ROWS))):
            write_npy(folder / name / f"{name}_{part}.npy", (end - begin, DIM), [v for r in rows[begin:end] for v in r])
    (folder / "encodings").mkdir()
    values = [draw.gauss(0, 1) for _ in range(ROWS * TEXT * DIM)]
    write_npy(folder / "encodings" / "0.npy", (ROWS, TEXT, DIM), values)


def prior_config(folder, out, **sections):
    config = {
        "prior": {"net": {"dim": DIM, "depth": 1, "dim_head": 8, "heads": 2, "max_text_len": 4}, "image_embed_dim": DIM,
                  "timesteps": 20, "sample_timesteps": 4, "cond_drop_prob": 0.1},
        "data": {"image_url": str(folder / "images"), "text_url": str(folder / "texts"),
                 "text_encodings_url": str(folder / "encodings"), "batch_size": 6,
                 "splits": {"train": 0.8, "val": 0.1, "test": 0.1}},
        "train": {"epochs": 3, "lr": 1e-2, "device": "cpu", "ema_beta": 0.9, "ema_update_after_step": 0,
                  "ema_update_every": 1, "eval_timesteps": [4, 20], "random_seed": 3},
        "tracker": {"data_path": out, "overwrite_data_path": True,
                    "log": {"log_type": "console", "auto_resume": True},
                    "load": {"load_from": "local", "file_path": f"{out}/latest.pth", "only_auto_resume": True},
                    "save": {"save_to": "local", "save_latest_to": f"{out}/latest.pth",
                             "save_best_to": f"{out}/best_{{epoch}}.pth"}},
    }
    for section, keys in sections.items():
        config[section] = {**config[section], **keys}
    return config


class Prior(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="dalle2-prior-"))
        make_embeddings(cls.base)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.base, ignore_errors=True)

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(dir=self.base))

    def config(self, out="out", **sections):
        return write_config(self.dir / f"{out}.json", prior_config(self.base, out, **sections))

    def train(self, config, *arguments, check=0, **kwargs):
        return run("--config", config, *arguments, cwd=self.dir, check=check, **kwargs)

    def logged(self, out, key):
        return [r[key] for r in records(self.dir / out) if key in r]

    def tensors(self, path):
        """Every entry of a checkpoint as `inspect` shows it, but for what tells the time."""
        shown = run("inspect", path, "--json", cwd=self.dir, check=0).stdout
        return shown

    def test_it_learns_and_leaves_what_the_reference_leaves(self):
        done = self.train(self.config(train={"epochs": 40}))
        losses = self.logged("out", "tracking/training-l2")
        self.assertEqual(len(losses), 40)  # 8 batches an epoch: the first of each
        self.assertLess(losses[-1], 0.7 * losses[0])
        names = {k for r in records(self.dir / "out") for k in r}
        for name in ("tracking/epoch", "tracking/samples-sec", "tracking/samples-seen", "tracking/ema-decay",
                     "metrics/online-validation/l2-loss", "metrics/ema-validation/l2-loss", "metrics/ema-test/l2-loss",
                     "tracking/validation length (minutes)"):
            self.assertIn(name, names)
        for steps in (4, 20):
            for what in ("baseline similarity", "similarity with text", "similarity with original image",
                         "similarity with unrelated caption", "difference from baseline similarity"):
                self.assertIn(f"metrics/ema-validation/{what} [steps={steps}]", names)
        self.assertIn("Number of parameters", done.stdout)
        for name in ("latest.pth", "checkpoint.pth", "model.pth", "best_40.pth", "prior_config.json"):
            self.assertTrue((self.dir / "out" / name).exists(), name)
        entries = json.loads(self.tensors("out/latest.pth"))
        self.assertIn("ema_model", json.dumps(entries))

    def test_a_stopped_run_goes_on_as_one_that_never_stopped(self):
        self.train(self.config("whole"))
        config = self.config("parts")
        # Enough epochs' worth of time: stop as soon as the first record is there.
        process = subprocess.Popen([BINARY, "--config", config], cwd=self.dir, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        log = self.dir / "parts" / "log.jsonl"
        for _ in range(2000):
            if log.exists() and "tracking/training-l2" in log.read_text():
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0].decode()
        self.assertIn(process.returncode, (75, 0), output)
        if process.returncode == 75:
            done = self.train(config)
            self.assertIn("Loaded model from", done.stdout)
        for name in ("latest.pth", "model.pth"):
            whole, parts = ((self.dir / out / name).read_bytes() for out in ("whole", "parts"))
            self.assertEqual(len(whole), len(parts))
        self.assertEqual(self.logged("whole", "tracking/training-l2"), self.logged("parts", "tracking/training-l2"))
        self.assertEqual(self.logged("whole", "metrics/ema-test/l2-loss"),
                         self.logged("parts", "metrics/ema-test/l2-loss"))

    def test_every_option_of_the_utilities_trains(self):
        for number, options in enumerate((
                {"min_snr_gamma": 5, "loss_weighting": "cosmap", "input_perturbation": 0.1,
                 "timestep_sampling": {"scheme": "logit_normal"}},
                {"ema": {"kind": "diffusers"}, "mixed_precision": "bf16", "max_batch_size": 2},
                {"use_ema": False, "lora": {"rank": 2}},
                {"wd": 0, "warmup_steps": 3, "cosine_decay_max_steps": 20, "max_grad_norm": None})):
            with self.subTest(options=options):
                out = f"out{number}"
                self.train(self.config(out, train={"epochs": 1, "eval_timesteps": [4], **options}))
                self.assertTrue(all(math.isfinite(v) for v in self.logged(out, "tracking/training-l2")))

    def test_bad_rows_are_left_out_and_told_of(self):
        folder = self.dir / "bad"
        shutil.copytree(self.base / "images", folder)
        shape, values = read_npy(folder / "images_0.npy")
        values[2 * DIM + 1] = math.nan
        write_npy(folder / "images_0.npy", shape, values)
        done = self.train(self.config(data={"image_url": str(folder)}, train={"epochs": 1}))
        self.assertIn("1 of the rows 0 to 5 hold NaN or infinity and are left out (the first: 2)",
                      done.stdout + done.stderr)
        self.assertIn("done: 1 epochs, 47 samples", done.stdout)

    def test_folders_that_do_not_fit_are_refused(self):
        (self.dir / "empty").mkdir()
        short = self.dir / "short"
        short.mkdir()
        write_npy(short / "0.npy", (3, DIM), [0.0] * 3 * DIM)
        wide = self.dir / "wide"
        wide.mkdir()
        write_npy(wide / "0.npy", (ROWS, 5), [0.0] * ROWS * 5)
        for folder, text in ((self.dir / "absent", "expected a folder of .npy files"),
                             (self.dir / "empty", "found none"),
                             (short, "has 3 rows and /data/image_url 60"),
                             (wide, "expected [rows, 8] of float16, float32 or float64 in C order, got [60, 5]")):
            with self.subTest(folder=folder.name):
                done = self.train(self.config(data={"text_url": str(folder)}), check=3)
                self.assertIn(text, done.stdout + done.stderr)
                self.assertFalse((self.dir / "out").exists())

    def test_a_dry_run_tells_what_a_run_takes_and_writes_nothing(self):
        done = self.train(self.config(), "--dry-run")
        self.assertIn("rows: 48 train, 6 val, 6 test; batches of 6", done.stdout)
        self.assertIn("8 steps an epoch, 24 in all", done.stdout)
        self.assertFalse((self.dir / "out").exists())

    @unittest.skipUnless(REFERENCE_PYTHON, "needs a Python with dalle2-pytorch")
    def test_the_reference_loads_the_checkpoint(self):
        self.train(self.config(train={"epochs": 1}))
        script = (
            "import torch, json\n"
            "from dalle2_pytorch.dalle2_pytorch import DiffusionPrior, DiffusionPriorNetwork\n"
            "from dalle2_pytorch.trainer import DiffusionPriorTrainer\n"
            f"net = DiffusionPriorNetwork(dim={DIM}, depth=1, dim_head=8, heads=2, max_text_len=4)\n"
            f"prior = DiffusionPrior(net, image_embed_dim={DIM}, timesteps=20, cond_drop_prob=0.1)\n"
            "trainer = DiffusionPriorTrainer(prior, lr=1e-2)\n"
            "trainer.load(torch.load('out/latest.pth', weights_only=True))\n"
            "print('step', trainer.step.item())\n")
        done = subprocess.run([REFERENCE_PYTHON, "-c", script], cwd=self.dir, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("step 8", done.stdout)


if __name__ == "__main__":
    harness.main()
