# SPDX-License-Identifier: MIT
"""Losses that are no numbers, and half precision: what is skipped, counted and told, when a run stops or goes back, and
that no checkpoint ever holds a NaN."""
import array
import json
import math
import pathlib
import shutil

import harness
from harness import EndToEnd, records, run

BATCH = 6  # a demo shard: the k-th batch of an epoch is the k-th shard
BATCHES = 12
HUGE = 3e38  # finite, so the loader passes it, but no product with it is


def saved(path, cwd):
    """The float32 tensors of a checkpoint by name, and every other value."""
    out = pathlib.Path(cwd) / "saved.safetensors"
    run("convert", path, out, "--overwrite", cwd=cwd, check=0)
    content = out.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    tree = json.loads(header.pop("__metadata__")["dalle2.checkpoint"])
    tensors = {name: array.array("f", content[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
               for name, entry in header.items() if entry["dtype"] == "F32"}
    return tensors, tree


class NonFinite(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        config = cls.sections(harness.tiny_config(cls.shards, "out"), {})
        harness.write_config(cls.base / "order.json", config)
        run("--config", "order.json", cwd=cls.base, check=0, env={"DALLE2_TRACE_SAMPLES": str(cls.base / "trace")})
        lines = [json.loads(line) for line in (cls.base / "trace.rank0").read_text().splitlines()]
        shards = lambda split: [int(line["keys"][0][:-4]) for line in lines if line["split"] == split]
        cls.train_shards, cls.val_shards = shards("train"), sorted(set(shards("val")))
        assert len(cls.train_shards) == BATCHES, lines

    @staticmethod
    def sections(config, train):
        config["data"].update(batch_size=BATCH, shuffle_train=False)
        config["train"].update(n_sample_images=0, **train)
        return config

    def poisoned(self, batches=(), val=False):
        """A copy of the shards whose embeddings overflow in these batches of the training, or in validation."""
        copy = self.dir / "shards"
        shutil.copytree(self.shards, copy)
        for shard in [self.train_shards[i] for i in batches] + (self.val_shards if val else []):
            path = copy / "img_emb" / f"img_emb_{shard:06d}.npy"
            shape, values = harness.read_npy(path)
            harness.write_npy(path, shape, [HUGE] * len(values))
        return copy

    def write(self, shards, out="out", **train):
        config = self.sections(harness.tiny_config(shards, out), train)
        return harness.write_config(self.dir / f"{out}.json", config)

    def check_finite(self, path):
        self.assertEqual(run("fsck", path, cwd=self.dir).returncode, 0)
        tensors, tree = saved(path, self.dir)
        self.assertGreater(len(tensors), 100)
        bad = [name for name, values in tensors.items()
               if "recent_losses" not in name and not all(map(math.isfinite, values))]
        self.assertEqual(bad, [])
        return tree

    def test_an_update_with_a_bad_batch_is_skipped_and_counted_and_the_run_goes_on(self):
        done = self.train(self.write(self.poisoned([4]), epochs=3))
        output = done.stdout + done.stderr
        self.assertIn("unet 1: an update was skipped, because its loss or gradient is not finite; 1 skipped so far (step 4, "
                      "epoch 0, sample 30)", output)
        self.assertEqual(output.count("an update was skipped"), 2)  # of three: the first and the second
        training = [line for line in records(self.dir / "out") if "Unet 0 Training Loss" in line]
        self.assertEqual([line.get("Unet 0 Skipped Updates") for line in training], [None, 1, 1, 2, 2, 3])
        self.assertEqual([line.get("Unet 0 Losses Not Finite") for line in training], [None, 1, 1, 1, 1, 1])
        self.assertTrue(all(math.isfinite(line["Unet 0 Training Loss"]) for line in training))
        tree = self.check_finite("out/checkpoint.pth")
        self.assertEqual(tree["samples_seen"], 3 * BATCH * BATCHES)
        self.assertEqual(training[-1]["step"], 2 * (BATCHES - 1) + 10)

    def test_too_many_in_a_row_stop_the_run_with_code_4(self):
        config = self.write(self.poisoned([4, 5, 6, 7]), save_every_n_samples=6, non_finite={"after": 3})
        done = self.train(config, check=4)
        for text in ("the last 3 updates of unet 1 were skipped, because their losses or gradients are not finite (step 4, "
                     "epoch 0, sample 42)", "run the command again", "/train/lr", "/train/max_grad_norm",
                     "dalle2-train shards check", "/train/non_finite"):
            self.assertIn(text, done.stderr + done.stdout)
        # Two saves were due meanwhile; they would have taken the place of what is known to be good.
        self.assertEqual(self.check_finite("out/checkpoint.pth")["samples_seen"], 24)
        run("sample", "--checkpoint", "out/latest.pth", "--image-embeds", self.shards / "img_emb/img_emb_000000.npy", "--out",
            "drawn", cwd=self.dir, check=0)

    def test_a_run_without_a_checkpoint_of_its_own_cannot_roll_back(self):
        done = self.train(self.write(self.poisoned(range(4)), non_finite={"action": "roll_back", "after": 4}), check=4)
        self.assertIn("there is no checkpoint of this run to go back to", done.stdout + done.stderr)

    def test_weights_that_are_not_finite_are_never_saved(self):
        self.train(self.write(self.shards, out="first"))
        run("convert", "first/checkpoint.pth", "all.safetensors", cwd=self.dir, check=0)
        content = bytearray((self.dir / "all.safetensors").read_bytes())
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8:8 + length])
        name = next(name for name in header if name.endswith("to_out.weight") and name.startswith("model"))
        begin = 8 + length + header[name]["data_offsets"][0]
        content[begin:begin + 4] = array.array("f", [math.nan]).tobytes()
        (self.dir / "all.safetensors").write_bytes(content)
        run("convert", "all.safetensors", "bad.pth", cwd=self.dir, check=0)
        config = harness.tiny_config(self.shards, "out", train={"epochs": 2, "n_sample_images": 0})
        config["tracker"]["load"] = {"load_from": "local", "file_path": "bad.pth"}
        path = harness.write_config(self.dir / "bad.json", config)
        dry = run("--config", path, "--dry-run", cwd=self.dir, check=3)
        self.assertRegex(dry.stderr, r"bad.pth: \S+to_out.weight: the weights are not finite")
        done = self.train(path, check=3)
        self.assertIn("bad.pth: the weights of unet 1 are not finite", done.stdout + done.stderr)
        self.assertIn("Load another checkpoint; `dalle2-train fsck` shows which are intact", done.stdout + done.stderr)
        self.assertNotIn("other checkpoint:", done.stdout + done.stderr)  # none of this run's: there is no place to look at
        self.assertFalse(list((self.dir / "out").glob("*.pth")))

    def test_a_validation_loss_that_is_not_finite_is_not_the_best_and_does_not_count(self):
        done = self.train(self.write(self.poisoned(val=True), epochs=2))
        self.assertIn("the validation loss of epoch 1 is not finite and does not count", done.stdout + done.stderr)
        self.assertFalse((self.dir / "out/best.pth").exists())
        self.assertEqual(self.check_finite("out/checkpoint.pth")["validation_losses"], [])
        found = [line["Unet 0 Validation Loss"] for line in records(self.dir / "out") if "Unet 0 Validation Loss" in line]
        self.assertEqual(found, [None, None])

    def test_runs_in_half_precision_learn_what_a_run_in_full_precision_learns(self):
        losses = {}
        for precision in ("no", "bf16", "fp16"):
            done = self.train(self.write(self.shards, out=precision, mixed_precision=precision, epochs=4))
            if precision != "no":
                self.assertIn(f"mixed precision: {precision} (/train/mixed_precision)", done.stdout)
            lines = records(self.dir / precision)
            losses[precision] = [line["Unet 0 Validation Loss"] for line in lines if "Unet 0 Validation Loss" in line]
            scales = [line["Unet 0 Loss Scale"] for line in lines if "Unet 0 Loss Scale" in line]
            self.assertEqual(len(scales), 8 if precision == "fp16" else 0)
            self.check_finite(f"{precision}/checkpoint.pth")
        self.assertLess(losses["no"][-1], losses["no"][0])
        for precision in ("bf16", "fp16"):
            self.assertNotEqual(losses[precision], losses["no"])
            for half, full in zip(losses[precision], losses["no"]):
                self.assertLess(abs(half - full), 0.1 * full)

    def test_amp_takes_what_the_machine_does_well_and_says_so(self):
        done = self.train(self.write(self.shards, amp=True))
        self.assertRegex(done.stdout, r"mixed precision: (bf16|no) \(/train/amp: this (device|CPU) has ")
        self.train(self.write(self.shards, out="named", amp=True, mixed_precision="fp16"))
        self.assertIn("Unet 0 Loss Scale", (self.dir / "named/log.jsonl").read_text())


if __name__ == "__main__":
    harness.main()
