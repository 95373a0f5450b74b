# SPDX-License-Identifier: MIT
"""Training runs from start to finish: what they leave, how they stop and go on."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import harness
from harness import BINARY, EndToEnd, inspect, read_npy, records, run


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def weights(path, cwd):
    """Every tensor of a checkpoint by name, through our own inspect and convert."""
    out = pathlib.Path(cwd) / (pathlib.Path(path).stem + ".weights.safetensors")
    run("convert", path, out, "--overwrite", cwd=cwd, check=0)
    content = out.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    return {name: hashlib.sha256(content[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]]).hexdigest()
            for name, entry in header.items() if name != "__metadata__"}


class Training(EndToEnd):
    def test_a_run_leaves_checkpoints_logs_and_pictures(self):
        done = self.train(self.config(train={"epochs": 2}))
        out = self.dir / "out"
        for name in ("checkpoint.pth", "model.pth", "latest.pth", "best.pth", "log.jsonl", "decoder_config.json"):
            self.assertTrue((out / name).is_file(), name)
        self.assertFalse(list(out.rglob("*.part")))
        lines = records(out)
        training = [line for line in lines if "Unet 0 Training Loss" in line]
        self.assertGreaterEqual(len(training), 2)
        for key in ("Epoch", "Sample", "Step", "Samples per second", "Samples Seen", "Unet 0 EMA Decay", "step"):
            self.assertIn(key, training[0])
        self.assertEqual(sum("Unet 0 Validation Loss" in line for line in lines), 2)
        sections = {name for line in lines for name in line}
        self.assertIn("Train Samples", sections)
        self.assertIn("Test Samples", sections)
        pictures = list((out / "images").glob("*.png"))
        self.assertGreaterEqual(len(pictures), 8)
        self.assertTrue(all(picture.read_bytes()[:4] == b"\x89PNG" for picture in pictures))
        self.assertIn("precomputed image embeddings", done.stdout)
        self.assertRegex(done.stdout, r"Number of parameters: \d+ total")

    def test_the_same_seed_gives_the_same_bits_for_any_number_of_loader_threads(self):
        for threads in (0, 1, 3):
            self.train(self.config(f"c{threads}.json", f"out{threads}", data={"num_workers": threads}))
        first = weights(self.dir / "out0" / "checkpoint.pth", self.dir)
        for threads in (1, 3):
            self.assertEqual(weights(self.dir / f"out{threads}" / "checkpoint.pth", self.dir), first)

    def test_deterministic_mode_gives_the_same_bits_on_the_cpu(self):
        self.train(self.config("a.json", "a"))
        self.train(self.config("b.json", "b", train={"deterministic": True}))
        self.assertEqual(weights(self.dir / "b/checkpoint.pth", self.dir), weights(self.dir / "a/checkpoint.pth", self.dir))

    def test_another_seed_gives_other_weights(self):
        self.train(self.config("a.json", "a"))
        self.train(self.config("b.json", "b", seed=1))
        self.assertNotEqual(weights(self.dir / "a/checkpoint.pth", self.dir)["model.unets.0.to_out.weight"],
                            weights(self.dir / "b/checkpoint.pth", self.dir)["model.unets.0.to_out.weight"])

    def test_a_stopped_run_saves_exits_75_and_goes_on_to_the_same_weights(self):
        train = {"epochs": 3, "n_sample_images": 0}
        self.train(self.config("whole.json", "whole", train=train))
        config = self.config("stopped.json", "stopped", train=train)
        process = subprocess.Popen([BINARY, "--config", config], cwd=self.dir, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        output = []
        for line in process.stdout:
            output.append(line)
            if "Starting epoch 1" in line:
                process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 75, "".join(output))
        resumed = self.train(config)
        self.assertRegex(resumed.stdout, r"having seen \d+ samples")
        self.assertEqual(weights(self.dir / "whole/checkpoint.pth", self.dir),
                         weights(self.dir / "stopped/checkpoint.pth", self.dir))

    def test_only_the_unets_of_the_training_mask_are_trained_and_saved(self):
        unet = {"dim": 8, "dim_mults": [1, 2], "cond_dim": 8, "num_resnet_blocks": 1, "resnet_groups": 4,
                "num_image_tokens": 1, "num_time_tokens": 1}
        decoder = {"unets": [{**unet, "image_embed_dim": 32}, unet], "image_size": None, "image_sizes": [8, 16],
                   "timesteps": 50, "sample_timesteps": [3, 3]}
        config = harness.tiny_config(self.shards, "out", train={"unet_training_mask": [False, True]})
        config["decoder"] = {key: value for key, value in {**config["decoder"], **decoder}.items() if key != "image_size"}
        # T = 50: the default schedule of the last unet is linear, whose betas are sound from T = 21 on.
        self.train(harness.write_config(self.dir / "config.json", config))
        names = inspect("out/checkpoint.pth", self.dir)
        self.assertIn("model/unets.1.to_out.weight", names)
        self.assertEqual([name for name in names if "unets.0." in name], [])
        keys = {key for record in records(self.dir / "out") for key in record}
        self.assertIn("Unet 1 Training Loss", keys)
        self.assertNotIn("Unet 0 Training Loss", keys)

    def test_epoch_and_validation_samples_are_capped_and_snapshots_follow_their_rule(self):
        self.train(self.config(train={"epoch_samples": 24, "validation_samples": 8, "save_every_n_samples": 8,
                                      "n_sample_images": 0}))
        # strictly more than 8 samples after the last save: at 24 only, since 8 + 8 is not above 8 + 8
        self.assertEqual(inspect("out/latest.pth", self.dir)["samples_seen"]["value"], 24)
        self.assertEqual(sum("Unet 0 Validation Loss" in record for record in records(self.dir / "out")), 1)

    def test_without_averages_there_is_no_ema_entry_and_no_decay_in_the_log(self):
        self.train(self.config(train={"use_ema": False}))
        names = inspect("out/checkpoint.pth", self.dir)
        self.assertGreater(len(names), 100)
        self.assertEqual([name for name in names if name.startswith("ema")], [])
        self.assertNotIn("EMA Decay", (self.dir / "out/log.jsonl").read_text())

    def test_a_conversion_replaces_no_file_without_overwrite(self):
        self.train(self.config())
        (self.dir / "thesis.pth").write_text("of years")
        before = weights(self.dir / "out/latest.pth", self.dir)
        for out in ("out/latest.pth", "thesis.pth"):
            self.assertIn(f"OUT {out}: the file exists", run("convert", "out/model.pth", out, cwd=self.dir, check=2).stderr)
        self.assertEqual((self.dir / "thesis.pth").read_text(), "of years")
        self.assertEqual(weights(self.dir / "out/latest.pth", self.dir), before)
        run("convert", "out/model.pth", "thesis.pth", "--overwrite", cwd=self.dir, check=0)

    def test_a_resume_at_the_end_trains_nothing(self):
        """A finished run is left as it is. With another config, sampling and saving are repeated."""
        self.train(self.config())
        before = weights(self.dir / "out/checkpoint.pth", self.dir)
        again = self.train(self.config())
        self.assertIn("nothing left to do: the run has finished", again.stdout)
        self.assertNotIn("Resuming", again.stdout)
        again = self.train(self.config(), "--set=/train/hang_timeout_seconds=900")
        self.assertIn("Resuming with sampling and saving after epoch 0\n", again.stdout)
        self.assertEqual(weights(self.dir / "out/checkpoint.pth", self.dir), before)

    def test_sampling_is_a_pure_function_of_weights_noise_and_embeddings(self):
        self.train(self.config())
        heldout = self.shards / "heldout"
        embeds = next(heldout.rglob("*.npy"))
        shape, _ = read_npy(embeds)
        noise = self.dir / "noise.npy"
        count = shape[0] * 3 * 16 * 16
        harness.write_npy(noise, (shape[0], 3, 16, 16), [((i * 7919) % 2000) / 1000 - 1 for i in range(count)])
        for batch, out in ((shape[0], "a"), (5, "b")):
            run("sample", "--checkpoint", "out/checkpoint.pth", "--image-embeds", embeds, "--init-noise", noise,
                "--batch-size", batch, "--out", out, cwd=self.dir, check=0)
        shape_a, a = read_npy(self.dir / "a/samples.npy")
        _, b = read_npy(self.dir / "b/samples.npy")
        self.assertEqual(tuple(shape_a), (shape[0], 3, 16, 16))
        self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 1e-4)
        self.assertTrue(all(0 <= value <= 1 for value in a))
        self.assertEqual(len(list((self.dir / "a").glob("[0-9]*.png"))), shape[0])
        # the model file holds the averages, so it samples the same; the live weights do not
        run("sample", "--checkpoint", "out/model.pth", "--image-embeds", embeds, "--init-noise", noise,
            "--batch-size", shape[0], "--out", "c", cwd=self.dir, check=0)
        self.assertEqual(digest(self.dir / "c/samples.npy"), digest(self.dir / "a/samples.npy"))
        run("sample", "--checkpoint", "out/checkpoint.pth", "--no-ema", "--image-embeds", embeds, "--init-noise",
            noise, "--batch-size", shape[0], "--out", "d", cwd=self.dir, check=0)
        self.assertNotEqual(digest(self.dir / "d/samples.npy"), digest(self.dir / "a/samples.npy"))

    def test_the_sample_trace_names_each_training_sample_once_an_epoch(self):
        self.train(self.config(data={"num_workers": 2}), env={"DALLE2_TRACE_SAMPLES": str(self.dir / "trace")})
        lines = [json.loads(line) for line in (self.dir / "trace.rank0").read_text().splitlines()]
        keys = [key for line in lines if line["split"] == "train" and line["epoch"] == 0 for key in line["keys"]]
        self.assertEqual(len(keys), len(set(keys)))
        self.assertGreater(len(keys), 32)

    def test_a_dry_run_writes_nothing(self):
        done = self.train(self.config(), "--dry-run")
        self.assertEqual(harness.left_by_refused_start(self.dir / "out"), [])
        for text in ("parameters", "samples per epoch", "steps", "checkpoint: about", "peak memory"):
            self.assertIn(text, done.stdout)


if __name__ == "__main__":
    harness.main()
