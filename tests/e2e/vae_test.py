# SPDX-License-Identifier: MIT
"""Runs of a VQGAN-VAE: files, stops, ranks, and what can be wrong with a config, a folder, a network or a checkpoint."""
import json
import os
import re
import shutil

from harness import checkpoint_content, main, needs_reference, records, run, run_reference
from vae_runs import FEATURES, VaeRuns

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


class Vae(VaeRuns):
    def test_a_run_leaves_what_muses_trainer_leaves(self):
        done = self.train(self.write("run"))
        self.assertIn("pictures: 48 train, 12 val; batches of 4", " ".join(done.stdout.split()))
        self.assertIn("[train] done: ", done.stdout)
        self.assertEqual(len(re.findall(r"^(\S+ )*\[train\] training complete$", done.stdout, re.MULTILINE)), 1, done.stdout)
        results = sorted(path.name for path in (self.dir / "run" / "results").iterdir())
        names = [f"{n}{kind}" for n in (0, 5, 10) for kind in (".png", ".ema.png")]
        pictures = sorted(names)
        names += [f"vae.{n}{kind}" for n in (0, 5, 10, 11) for kind in (".pt", ".ema.pt")]  # the last model, too
        self.assertEqual(results, sorted(names))
        # Both folders know a grid by the same name, that of muse's trainer.
        self.assertEqual(sorted(path.name for path in (self.dir / "run" / "images").iterdir()), pictures)
        self.assertIn("reconstructions: images/10.png", " ".join(done.stdout.split()))
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
        evaluate = ("evaluate", "--config", "run.json", "--checkpoint", "run/checkpoint.pth")
        alone = json.loads(run(*evaluate, cwd=self.dir, check=0).stdout)
        for processes in (2, 3):
            self.assertEqual(json.loads(run(*evaluate, "--nproc-per-node", processes, cwd=self.dir, check=0).stdout), alone)
        self.assertEqual(alone["pictures"], 12)
        self.assertLess(alone["mean_square_error"], alone["mean_absolute_error"])
        self.assertNotIn("warning", run(*evaluate, cwd=self.dir, check=0).stderr)
        # Other splits than the run's.
        done = run(*evaluate, "--set", "/data/valid_frac=0.3", cwd=self.dir, check=0)
        self.assertIn("expected the splits of the run that saved it, but the figures may be of samples that it was trained on",
                      " ".join(done.stderr.split()))
        self.assertIn("/data/valid_frac", done.stderr)

    def test_a_classic_codebook_and_the_reconstruction_alone(self):
        alone = {"use_vgg_and_gan": False, "lookup_free_quantization": False, "vq_codebook_dim": 8, "vq_threshold_ema_dead_code": 1}
        self.train(self.write("alone", vae=alone, train={"vgg_path": None, "ema_update_after_step": 100}))
        # Until then the average is a copy, codes included.
        live, average = (checkpoint_content(self.dir / "alone/results" / name, self.dir)[0] for name in ("vae.0.pt", "vae.0.ema.pt"))
        codes = [name for name in live if "_codebook" in name]
        self.assertGreaterEqual(len(codes), 3)
        for name in codes:
            self.assertEqual(live[name], average["ema_model." + name], name)
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

    def test_a_process_whose_pictures_run_out_takes_part_in_the_codes(self):
        vae = {"use_vgg_and_gan": False, "lookup_free_quantization": False, "vq_codebook_dim": 8, "codebook_size": 16,
               "vq_kmeans_init": True, "vq_threshold_ema_dead_code": 2}
        found = sorted(path for path in self.pictures.rglob("*") if path.suffix in (".jpg", ".png"))

        def losses(name, count, processes, batch, unreadable=None):
            folder = self.dir / f"pictures_of_{name}"
            folder.mkdir()
            for number, path in enumerate(found[:count]):
                shutil.copy(path, folder / f"{number}{path.suffix}")
                if number == unreadable:
                    (folder / f"{number}{path.suffix}").write_bytes(b"no picture")
            config = self.write(name, vae=vae, data={"folder": str(folder), "valid_frac": 0, "batch_size": batch},
                                train={"num_train_steps": 6, "lr": 1e-4, "hang_timeout_seconds": 10})
            run("--config", config, *(["--nproc-per-node", 2] if processes > 1 else []), cwd=self.dir, check=0)
            return [record["loss"] for record in records(self.dir / name) if "reconstruction_loss" in record]

        one, two = losses("one", 4, 1, 8), losses("two", 4, 2, 4)  # the second has none in any step
        self.assertEqual(len(one), 6)
        for expected, loss in zip(one, two, strict=True):
            self.assertAlmostEqual(loss, expected, delta=2e-4 * expected)
        self.assertEqual(len(losses("uneven", 12, 2, 4)), 3)  # none at the end of an epoch
        for unreadable in (0, 1):  # in one of these runs it is the first that has none at the start
            self.assertEqual(len(losses(f"unreadable{unreadable}", 2, 2, 1, unreadable)), 6)

    def test_what_is_wrong_is_told_at_the_start(self):
        empty = self.dir / "empty"
        empty.mkdir()
        for sections, code, text in [
                ({"data": {"folder": "absent"}}, 3, "absent: the folder cannot be read: No such file or directory"),
                ({"train": {"vgg_path": "absent.pt"}}, 2, "/train/vgg_path: there is no file absent.pt"),
                ({"train": {"vgg_path": str(FEATURES.parent / "strange.pt")}}, 2, "expected features [2, F], got [2, 3, 32, 32]"),
                ({"data": {"folder": str(empty)}, "train": {"results_folder": str(empty / "drawn")}}, 2,
                 f"/train/results_folder '{empty}/drawn' is in /data/folder '{empty}': the next start would train on what this one draws")]:
            with self.subTest(text):
                self.refuse_start(self.write("wrong", **sections), "wrong", code, text)
        self.train(self.write("run", train={"num_train_steps": 1}))
        done = self.train(self.write("plain", vae={"use_vgg_and_gan": False}), "--dry-run")
        self.assertIn("/train/vgg_path: has no effect: vae.use_vgg_and_gan is false", " ".join(done.stderr.split()))
        other = self.write("run", vae={"lookup_free_quantization": False, "codebook_size": 32}, train={"num_train_steps": 2})
        self.assertIn("/vae/lookup_free_quantization", " ".join(self.train(other, check=2).stderr.split()))
        done = run("sample", "--checkpoint", "run/checkpoint.pth", "--out", "drawn", cwd=self.dir, check=3)
        self.assertIn("expected a checkpoint of a decoder or prior, got one of a vae", " ".join(done.stderr.split()))

    def test_a_dry_run_tells_sizes_and_writes_nothing(self):
        done = self.train(self.write("dry"), "--dry-run")
        for text in ("train: 48 pictures", "val: 12 pictures", "steps: 12", "autoencoder", "discriminator", "all networks: "):
            self.assertIn(text, done.stdout)
        self.assertFalse((self.dir / "dry").exists())

    def test_a_stop_is_heard_while_no_picture_can_be_read(self):
        folder = self.dir / "unreadable"
        folder.mkdir()
        (folder / "0.png").write_bytes(b"no picture")
        for number in range(1, 60000):
            os.link(folder / "0.png", folder / f"{number}.png")
        config = self.write("run", data={"folder": str(folder), "batch_size": 1})
        process = self.start("--config", config)
        for line in process.stdout:
            if ".png" in line:
                process.terminate()
                break
        self.end_of(process, 75)
        own = checkpoint_content(self.dir / "run/checkpoint.pth", self.dir)[1]["dalle2_train"]
        self.assertLess(own["loader_position"]["row"], 57000)

    @needs_reference
    def test_files_are_read_by_the_reference(self):
        self.train(self.write("run", train={"num_train_steps": 6}))
        results = self.dir / "run" / "results"
        printed = run_reference(THEIR_STATE, results / "vae.5.pt", results / "vae.5.ema.pt", cwd=self.dir)
        self.assertEqual(printed.count("<All keys matched successfully>"), 2)


if __name__ == "__main__":
    main()
