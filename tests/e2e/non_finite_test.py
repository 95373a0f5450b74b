# SPDX-License-Identifier: MIT
"""Losses that are no numbers, and half precision: what is skipped, counted and told, when a run stops or goes back, and
that no checkpoint ever holds a NaN."""
import array
import json
import math
import shutil

import harness
from harness import EndToEnd, checkpoint_content, records, run

BATCH = 6  # a demo shard: the k-th batch of an epoch is the k-th shard
BATCHES = 12
HUGE = 3e38  # finite, so the loader passes it, but no product with it is


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
        tensors, tree = checkpoint_content(path, self.dir)
        self.assertGreater(len(tensors), 100)
        bad = [name for name, (kind, content) in tensors.items()
               if kind == "F32" and "recent_losses" not in name and not all(map(math.isfinite, array.array("f", content)))]
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

    def test_a_validation_loss_that_is_not_finite_is_not_the_best_and_does_not_count(self):
        done = self.train(self.write(self.poisoned(val=True), epochs=2))
        self.assertIn("the validation loss of epoch 1 is not finite and does not count", done.stdout + done.stderr)
        self.assertFalse((self.dir / "out/best.pth").exists())
        self.assertEqual(self.check_finite("out/checkpoint.pth")["validation_losses"], [])
        found = [line["Unet 0 Validation Loss"] for line in records(self.dir / "out") if "Unet 0 Validation Loss" in line]
        self.assertEqual(found, [None, None])

    def test_amp_takes_what_the_machine_does_well_and_says_so(self):
        self.assertRegex(self.train(self.write(self.shards, amp=True)).stdout, r"mixed precision: (bf16|no) \(/train/amp: this (device|CPU) has ")
        named = self.train(self.write(self.shards, out="named", amp=True, mixed_precision="fp16"))
        self.assertIn("mixed precision: fp16 (/train/mixed_precision)", named.stdout)
        self.assertIn("Unet 0 Loss Scale", (self.dir / "named/log.jsonl").read_text())
        self.check_finite("named/checkpoint.pth")


if __name__ == "__main__":
    harness.main()
