# SPDX-License-Identifier: MIT
"""A diffusion prior from its config to a checkpoint: training, validation, stopping and going on."""
import json
import math
import pathlib
import shutil
import tempfile
import unittest

import harness
from harness import needs_reference, read_npy, records, run, run_reference, write_config, write_npy
from prior_data import DIM, ROWS, make_embeddings, prior_config
from resume_test import saved_state, stop_when

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
        train = {"epochs": 40}  # hundreds of updates are still to come when the signal is sent
        self.train(self.config("whole", train=train))
        config = self.config("parts", train=train)
        stop_when(config, self.dir, lambda line: "Starting epoch 1" in line)
        self.assertRegex(self.train(config).stdout, r"Loaded model from parts/latest.pth on epoch \d+ having seen \d+ samples")
        for name in ("latest.pth", "model.pth"):
            whole, parts = (saved_state(self.dir / out / name, self.dir) for out in ("whole", "parts"))
            self.assertGreater(len(whole[0]), 10)
            self.assertEqual(whole, parts)
        self.assertEqual(len(self.logged("whole", "tracking/training-l2")), 40)
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

    @needs_reference
    def test_the_checkpoint_is_loaded_by_the_reference(self):
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
        self.assertEqual(run_reference(script, cwd=self.dir).splitlines()[-1], "step 8")


if __name__ == "__main__":
    harness.main()
