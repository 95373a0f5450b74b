# SPDX-License-Identifier: MIT
"""A decoder run from start to finish: its order, and what it logs, draws and saves on the way."""
import io
import json
import tarfile

import harness
from harness import EndToEnd, checkpoint_content, inspect, records, run

BATCH = 4


def values_of(tensor, path, cwd):
    """The float32 values of a checkpoint's tensor."""
    return list(harness.array.array("f", checkpoint_content(path, cwd)[0][tensor][1]))


class Loop(EndToEnd):
    def start(self, save=None, **train):
        """A run of two epochs in batches of 4. @return what it printed, its records, the samples of an epoch."""
        done = self.train(self.config(data={"batch_size": BATCH}, train={"epochs": 2, "n_sample_images": 1, **train},
                                      tracker={"save": save} if save else {}))
        lines = records(self.dir / "out")
        seen = inspect("out/checkpoint.pth", self.dir)["samples_seen"]["value"]
        return done.stdout, lines, seen // 2

    def saves(self, save_every, **train):
        """(epoch, next_task, sample, samples_seen) of every save, in no order."""
        name = "saves/{epoch}_{next_task}_{sample}_{samples_seen}.pth"
        output, lines, size = self.start({"save_to": "local", "save_latest_to": name},
                                         save_every_n_samples=save_every, **train)
        found = {tuple(path.stem.split("_")) for path in (self.dir / "saves").iterdir()}
        return {(int(e), task, int(sample), int(seen)) for e, task, sample, seen in found}, lines, size

    def test_snapshots_come_after_more_than_so_many_samples_and_each_epoch_ends_with_a_save(self):
        found, lines, size = self.saves(16, epoch_samples=50)
        self.assertEqual(size, 52)  # the batch that reaches the cap is trained whole
        expected = set()
        for epoch in (0, 1):
            expected |= {(epoch, "train", sample, epoch * size + sample) for sample in (20, 40)}
            expected.add((epoch, "sample", 0, (epoch + 1) * size))
        self.assertEqual(found, expected)
        # pictures: of training samples at a snapshot, of test and training samples at the end of an epoch
        sections = [next(iter(line)) for line in lines if next(iter(line)) in ("Train Samples", "Test Samples")]
        self.assertEqual(sections, ["Train Samples", "Train Samples", "Test Samples", "Train Samples"] * 2)
        for line in lines:
            for section, prefix in (("Train Samples", "Train: "), ("Test Samples", "Test: ")):
                for picture in line.get(section, []):
                    self.assertTrue(picture["caption"].startswith(prefix), picture)

    def test_save_immediately_saves_behind_the_first_step_of_each_epoch(self):
        found, _, size = self.saves(1000, epoch_samples=12, save_immediately=True)
        self.assertEqual(found, {(0, "train", 4, 4), (0, "sample", 0, 12), (1, "train", 4, 16), (1, "sample", 0, 24)})

    def test_the_start_tells_what_is_trained(self):
        output, _, _ = self.start(epochs=1, n_sample_images=0)
        self.assertIn("conditioned on precomputed image embeddings", output)
        self.assertRegex(output, r"Number of parameters: \d+ total; \d+ training")
        self.assertNotIn("Unet 1 has", output)  # one unet is all of them
        self.assertRegex(output, r"shards: \d+ train, \d+ val, \d+ test")

    def test_guidance_changes_the_pictures_and_not_the_training(self):
        pictures, states = [], []
        for scale in (1.0, 4.0):
            self.start(epochs=1, cond_scale=scale)
            pictures.append([path.read_bytes() for path in sorted((self.dir / "out/images").glob("*Train*.png"))])
            states.append(values_of("model.unets.0.to_out.weight", "out/checkpoint.pth", self.dir))
            (self.dir / "out").rename(self.dir / f"out{scale}")
        self.assertNotEqual(pictures[0], pictures[1])
        self.assertEqual(states[0], states[1])

    def copy_and_find_validation(self, **train):
        """@return a copy of the shards, a config on it, and the keys of the samples that its run validates on"""
        shards = self.dir / "shards"
        harness.shutil.copytree(self.shards, shards)
        path = self.config(shards=shards, train={"n_sample_images": 0, **train})
        self.train(path, env={"DALLE2_TRACE_SAMPLES": str(self.dir / "trace")})
        harness.shutil.rmtree(self.dir / "out")
        lines = [json.loads(line) for line in (self.dir / "trace.rank0").read_text().splitlines()]
        keys = {key for line in lines if line["split"] == "val" for key in line["keys"]}
        self.assertTrue(keys)
        return shards, path, keys

    def test_without_a_usable_validation_sample_nothing_is_best(self):
        broken, path, keys = self.copy_and_find_validation()
        for shard in broken.glob("[0-9]*.tar"):
            with tarfile.open(shard) as tar:
                members = [(member, tar.extractfile(member).read()) for member in tar if member.isfile()]
            if any(member.name.split(".")[0] in keys for member, _ in members):
                with tarfile.open(shard, "w") as tar:
                    for member, content in members:
                        if not member.name.endswith(".txt"):
                            content = b"no picture"
                            member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
        done = self.train(path)
        self.assertTrue((self.dir / "out/latest.pth").exists())
        self.assertFalse((self.dir / "out/best.pth").exists())
        self.assertNotIn("Validation Loss", (self.dir / "out/log.jsonl").read_text())
        self.assertIn("no usable sample", done.stdout + done.stderr)

    def test_a_validation_loss_that_is_not_finite_is_not_the_best_and_does_not_count(self):
        shards, path, keys = self.copy_and_find_validation(epochs=2)
        for shard in {int(key[:-4]) for key in keys}:
            embeddings = shards / f"img_emb/img_emb_{shard:06d}.npy"
            shape, values = harness.read_npy(embeddings)
            harness.write_npy(embeddings, shape, [3e38] * len(values))  # finite, so the loader passes it, but no product with it is
        done = self.train(path)
        self.assertIn("the validation loss of epoch 1 is not finite and does not count", done.stdout + done.stderr)
        self.assertFalse((self.dir / "out/best.pth").exists())
        self.assertEqual(checkpoint_content(self.dir / "out/checkpoint.pth", self.dir)[1]["validation_losses"], [])
        self.assertEqual(self.logged("out", "Unet 0 Validation Loss"), [None, None])

    def test_amp_takes_what_the_machine_does_well_and_says_so(self):
        done = self.train(self.config(train={"amp": True, "n_sample_images": 0}))
        self.assertRegex(done.stdout, r"mixed precision: (bf16|no) \(/train/amp: this (device|CPU) has ")
        named = self.train(self.config(out="named", train={"amp": True, "mixed_precision": "fp16", "n_sample_images": 0}))
        self.assertIn("mixed precision: fp16 (/train/mixed_precision)", named.stdout)
        self.assertIn("Unet 0 Loss Scale", (self.dir / "named/log.jsonl").read_text())

    def test_weights_draw_the_same_pictures_whichever_file_they_lie_in(self):
        self.start(epochs=1, n_sample_images=0)
        run("convert", "out/checkpoint.pth", "a.safetensors", cwd=self.dir, check=0)
        run("convert", "out/checkpoint.pth", "averages.safetensors", "--ema", cwd=self.dir, check=0)
        embeds = next((self.shards / "heldout").rglob("*.npy"))
        drawn = []
        for name in ("out/checkpoint.pth", "a.safetensors", "averages.safetensors", "out/model.pth"):
            run("sample", "--checkpoint", name, "--image-embeds", embeds, "--seed", 3, "--out", "drawn", "--overwrite", cwd=self.dir, check=0)
            drawn.append((self.dir / "drawn/samples.npy").read_bytes())
        self.assertEqual(len(set(drawn)), 1)
        # no file is replaced without --overwrite
        self.assertIn("OUT a.safetensors: the file exists", run("convert", "out/model.pth", "a.safetensors", cwd=self.dir, check=2).stderr)
        run("convert", "out/model.pth", "averages.safetensors", "--overwrite", cwd=self.dir, check=0)
        # and a run goes on from a converted checkpoint
        config = json.loads((self.dir / "config.json").read_text())
        config["train"]["epochs"] = 2
        config["tracker"].update(data_path="other", load={"load_from": "local", "file_path": "a.safetensors"},
                                 save={"save_to": "local", "save_latest_to": "other/latest.pth"})
        self.assertIn("Loaded model from a.safetensors", self.train(harness.write_config(self.dir / "config.json", config)).stdout)

    def test_the_seed_alone_decides_the_bits(self):
        found = {}
        for name, sections in (("plain", {}), ("no threads", {"data": {"num_workers": 0}}), ("three threads", {"data": {"num_workers": 3}}),
                               ("deterministic", {"train": {"deterministic": True}}), ("seed", {"seed": 1})):
            self.train(self.config(f"{name}.json", name, **sections))
            found[name] = checkpoint_content(self.dir / name / "checkpoint.pth", self.dir)[0]
        other = found.pop("seed")
        for name, tensors in found.items():
            self.assertEqual(tensors, found["plain"], name)
        self.assertNotEqual(other["model.unets.0.to_out.weight"], found["plain"]["model.unets.0.to_out.weight"])


if __name__ == "__main__":
    harness.main()
