# SPDX-License-Identifier: MIT
"""Stages of one cascade, trained apart (`unet_training_mask`): joined afterwards, or one run begun from the other's file."""

import json
import re
import subprocess

import harness
from harness import EndToEnd, read_npy, run, tiny_config, write_config, write_npy
from lora_test import tensors_of

MASKS = {"a": [True, False], "b": [False, True]}


class Stages(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_npy(cls.base / "embeds.npy", (2, 32), [0.1 * (i % 7 - 3) for i in range(64)])
        write_npy(cls.base / "noise-0.npy", (2, 3, 8, 8), [0.01 * (i % 199 - 99) for i in range(384)])
        write_npy(cls.base / "noise-1.npy", (2, 3, 16, 16), [0.01 * (i % 197 - 98) for i in range(1536)])
        for name in MASKS:
            cls.train_in(cls.base, name)

    @classmethod
    def config_of(cls, name, **more):
        """A cascade of which MASKS[name[0]] is trained, in the folder `name`."""
        decoder = {**harness.CASCADE, **more.pop("decoder", {})}
        train = {"n_sample_images": 0, "epoch_samples": 32, "unet_training_mask": MASKS[name[0]], **more.pop("train", {})}
        return tiny_config(cls.shards, name, decoder=decoder, train=train, **more)

    @classmethod
    def train_in(cls, folder, name, *arguments, check=0, **more):
        return run("--config", write_config(folder / f"{name}.json", cls.config_of(name, **more)), *arguments, cwd=folder,
                   check=check)

    def sample(self, checkpoint, out, *arguments, check=0):
        return run("sample", "--checkpoint", checkpoint, "--sampler", "ddim", *arguments, "--out", self.dir / out, "--overwrite",
                   cwd=self.base, check=check)

    def first_stage(self, checkpoint, out="first"):
        self.sample(checkpoint, out, "--image-embeds", "embeds.npy", "--stop-unet", 1, "--init-noise", "noise-0.npy")
        return read_npy(self.dir / out / "samples.npy")[1]

    def second_stage(self, checkpoint, out="second"):
        self.sample(checkpoint, out, "--start-unet", 2, "--image", "noise-0.npy", "--init-noise", "noise-1.npy")
        return read_npy(self.dir / out / "samples.npy")[1]

    def whole(self, checkpoint, out="whole"):
        self.sample(checkpoint, out, "--image-embeds", "embeds.npy", "--init-noise", "noise-0.npy", "--init-noise",
                    "noise-1.npy")
        shape, values = read_npy(self.dir / out / "samples.npy")
        self.assertEqual(tuple(shape), (2, 3, 16, 16))
        return values

    def join(self, *arguments, check=0):
        return run("convert", "--merge", *arguments, cwd=self.base, check=check)

    def test_a_joined_file_draws_each_stage_as_the_file_it_came_from(self):
        wanted = self.first_stage("a/checkpoint.pth"), self.second_stage("b/checkpoint.pth")
        live = tensors_of("a/checkpoint.pth", self.base)
        for name, files, more in (("all.pth", ["b/checkpoint.pth", "a/checkpoint.pth"], []),
                                  ("models.safetensors", ["a/model.pth", "b/model.pth"], []),
                                  ("mixed.pth", ["a/model.pth", "b/checkpoint.pth"], []),
                                  ("averaged.pth", ["a/checkpoint.pth", "b/model.pth"], ["--ema"])):
            with self.subTest(name):
                joined = self.dir / name
                done = self.join(*files, joined, *more)
                self.assertRegex(done.stdout, r"unet 1: a/.*\nunet 2: b/.*\n")
                self.assertEqual((self.first_stage(joined), self.second_stage(joined)), wanted)
                self.whole(joined)
        joined = tensors_of(self.dir / "all.pth", self.dir)
        self.assertEqual([n for n in live if n.startswith("unets.0.") and joined[n] != live[n]], [], "the live weights")
        entries = harness.inspect(self.dir / "all.pth", self.dir)
        for unet in (0, 1):
            self.assertTrue([n for n in entries if n.startswith(f"optim{unet}/") and n.endswith("exp_avg")], unet)
        self.assertIsNone(entries["config/train/unet_training_mask"].get("value"))
        self.assertIn("a run can resume from it", run("fsck", self.dir / "all.pth", cwd=self.dir, check=0).stdout)
        # And training goes on from it, both stages at once.
        self.train_in(self.dir, "both", check=0, train={"unet_training_mask": None, "epochs": 2},
                      tracker={"load": {"load_from": "local", "file_path": "all.pth"}})
        # A model file gives the weights to begin with, for all stages or for one.
        for file in ("averaged.pth", self.base / "b/model.pth"):
            done = self.train_in(self.dir, "begun", "--fresh", check=0, train={"unet_training_mask": None if file == "averaged.pth" else [False, True]},
                                 tracker={"load": {"load_from": "local", "file_path": str(file)}})
            self.assertIn(f"{file}: weights only: optimizers, averages and the run start from zero", done.stdout + done.stderr)

    def drawn(self, out, *arguments, check=0):
        return run("sample", "--sampler", "ddim", "--image-embeds", "embeds.npy", "--seed", 3, *arguments, "--out",
                   self.dir / out, "--overwrite", cwd=self.base, check=check)

    def memory_in(self, dry):
        """Bytes of the weights of all unets, and at the peak with one picture at a time and with eight."""
        units = ["B", "KiB", "MiB", "GiB"]
        size = r"(\S+) (B|KiB|MiB|GiB)"
        lines = rf"Weights in main memory: {size} of the unets; a GPU holds those of one file at a time, at most .*\n" \
                rf".*Peak memory of the program: about 0\.2 GiB of its own, and about {size} of weights and batches for one " \
                rf"picture at a time, {size} for 8 \(--batch-size\)\n"
        self.assertRegex(dry, lines)
        found = re.search(lines, dry).groups()
        return [float(number) * 1024 ** units.index(unit) for number, unit in zip(found[::2], found[1::2])]

    def test_files_of_stages_draw_together_as_the_joined_file_does(self):
        self.join("a/model.pth", "b/model.pth", self.dir / "all.pth")
        self.drawn("joined", "--checkpoint", self.dir / "all.pth", "--timesteps", 4, 6, "--cond-scale", 1.5, 1, "--batch-size", 1)
        wanted = read_npy(self.dir / "joined/samples.npy")
        several = ["--checkpoint", "a/model.pth", "--upsampler", "b/model.pth"]
        self.drawn("several", *several, "--timesteps", 4, 6, "--cond-scale", 1.5, 1, "--batch-size", 1)
        self.assertEqual(read_npy(self.dir / "several/samples.npy"), wanted)
        # The upsampler's file may hold the first stage too, which is not used.
        self.drawn("both", *several[:3], self.dir / "all.pth", "--timesteps", 4, 6, "--cond-scale", 1.5, 1, "--batch-size", 1)
        self.assertEqual(read_npy(self.dir / "both/samples.npy"), wanted)
        source = lambda file, unet, scale, steps: {
            "unet_numbers": [unet], "default_cond_scale": [scale], "default_sample_timesteps": [steps],
            "load_model_from": {"load_type": "local", "path": file, "checksum_file_path": None}}
        pipeline = {"decoder": {"unet_sources": [source("b/model.pth", 2, 1.0, 6), source("a/model.pth", 1, 1.5, 4)]},
                    "clip": {"make": "openai", "model": "ViT-L/14"}, "devices": "cuda:0", "load_on_cpu": True,
                    "strict_loading": False}
        file = write_config(self.dir / "pipeline.json", pipeline)
        self.drawn("pipeline", "--pipeline", file, "--batch-size", 1)
        self.assertEqual(read_npy(self.dir / "pipeline/samples.npy"), wanted)
        dry = self.drawn("dry", "--pipeline", file, "--dry-run")
        self.assertIn("without effect here: clip, devices, load_on_cpu, strict_loading", " ".join(dry.stderr.split()))
        self.assertNotIn("checksum_file_path", dry.stderr)
        dry = dry.stdout
        self.assertRegex(dry, r"unet 1 of a/model.pth: 8 x 8 pixels, \d+ parameters, 4 of 50 steps, guidance 1.5")
        self.assertRegex(dry, r"unet 2 of b/model.pth: 16 x 16 pixels, \d+ parameters, 6 of 50 steps, guidance 1\n")
        weights, one, eight = self.memory_in(dry)
        self.assertLess(weights, one)
        self.assertLess(one, eight)
        self.assertFalse((self.dir / "dry").exists())
        told = ["--upsampler-written-by", "1.15.6"]
        self.drawn("told", "--pipeline", file, "--batch-size", 1, *told)
        self.assertEqual(read_npy(self.dir / "told/samples.npy"), wanted)
        said = self.drawn("x", "--pipeline", file, *told, *told, check=2).stderr
        self.assertIn("--upsampler-written-by: expected one for each of 1 file after the first, in their order, got ", said)
        bare = self.dir / "bare.safetensors"
        run("convert", "a/model.pth", bare, cwd=self.base, check=0)
        content = bare.read_bytes()
        begin = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:begin])
        header.pop("__metadata__")  # which has the config
        header = json.dumps(header).encode()
        bare.write_bytes(len(header).to_bytes(8, "little") + header + content[begin:])
        no_config = self.dir / "no_config.json"
        no_config.write_text((self.dir / "pipeline.json").read_text().replace("a/model.pth", str(bare)))
        self.assertIn('has no config\n  Give the config it was made with: "load_config_from": {"load_type": "local", "path": "F.json"} '
                      f"beside its load_model_from in {no_config}", self.drawn("x", "--pipeline", no_config, check=2).stderr)
        gone = self.dir / "gone.json"
        gone.write_text((self.dir / "pipeline.json").read_text().replace("a/model.pth", "none/model.pth"))
        self.assertIn(f"gone.json names none/model.pth: no such file\n  Paths in it are relative to the working directory, {self.base}.",
                      self.drawn("x", "--pipeline", gone, check=3).stderr)
        prior = self.dir / "prior.safetensors"
        header = json.dumps({"net.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        prior.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        for decoder in ("a/model.pth", "b/model.pth"):
            place = self.dir / "place.json"
            place.write_text((self.dir / "pipeline.json").read_text().replace(decoder, str(prior)))
            self.assertIn(f"{place}: /decoder/unet_sources: {prior} is of a prior\n  Name it under /prior/load_model_from.",
                          self.drawn("x", "--pipeline", place, check=2).stderr)
        pipeline["decoder"]["unet_sources"][1]["default_sample_timesteps"] = [5000]
        many = write_config(self.dir / "many.json", pipeline)
        for more in ([], ["--dry-run"]):
            said = self.drawn("x", "--pipeline", many, *more, check=2).stderr
            self.assertIn("a/model.pth: default_sample_timesteps (", said)
            self.assertIn("many.json) of unet 1: expected 1 to 50, got 5000", said)
        self.assertIn("--cond-scale: expected one value, or one for each of the 2 unets of a/model.pth and b/model.pth, got 3",
                      self.drawn("x", *several, "--cond-scale", 1, 2, 3, check=2).stderr)
        pipeline["decoder"]["unet_sources"][0]["unet_numbers"] = [3]
        pipeline["decoder"]["unet_sources"][0]["default_cond_scale"] = [1, 2]
        pipeline["decoder"]["unet_source"] = []
        said = self.drawn("x", "--pipeline", write_config(self.dir / "wrong.json", pipeline), check=2).stderr
        self.assertIn("/decoder/unet_sources: unet_numbers of all sources must be 1 to 2, each once", said)
        self.assertIn("/decoder/unet_sources/0/default_cond_scale: expected a value for each of unet_numbers (1), got 2", said)
        self.assertIn("/decoder/unet_source: no such key", said)

    def test_a_dry_run_tells_the_stages_that_would_be_drawn(self):
        said = self.drawn("x", "--checkpoint", "b/model.pth", "--start-unet", 2, "--image", "noise-0.npy", "--dry-run").stdout
        self.assertIn("unet 2 of b/model.pth", said)
        self.assertNotIn("unet 1 of", said)
        said = self.drawn("x", "--checkpoint", "b/model.pth", "--dry-run", check=2).stderr
        self.assertIn("unet 1 has no weights here", said)

    def test_the_section_of_the_model_is_config_enough_and_a_pipe_gives_it_too(self):
        config = json.loads((self.base / "a.json").read_text())
        (self.base / "section.json").write_text(json.dumps({"decoder": config["decoder"]}))
        command = '"$0" sample --checkpoint a/model.pth --config <(cat section.json) --image-embeds embeds.npy --stop-unet 1 --dry-run --out x'
        done = subprocess.run(["bash", "-c", command, harness.BINARY], cwd=self.base, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("unet 1 of a/model.pth", done.stdout)

    def test_files_that_do_not_draw_together_are_refused(self):
        said = self.drawn("x", "--checkpoint", "a/model.pth", "--upsampler", "a/model.pth", check=2).stderr
        self.assertRegex(said, r"--upsampler a/model.pth: .*\n  Leave it out")
        self.train_in(self.dir, "b-large", decoder={"image_sizes": [12, 16]})
        large = self.dir / "b-large/model.pth"
        said = self.drawn("x", "--checkpoint", "a/model.pth", "--upsampler", large, check=2).stderr
        self.assertIn(f"{large} does not continue a/model.pth: its unet 2 enlarges pictures of 12 x 12 pixels", said)
        said = self.drawn("x", "--checkpoint", "a/model.pth", "--upsampler-config", "a.json", check=2).stderr
        self.assertIn("--upsampler-config: needs --upsampler", said)
        several = ["--upsampler", "b/model.pth", "--upsampler-config", "b.json", "--upsampler-config", "b.json"]
        self.assertIn("--upsampler-config: expected one for each of 1 file after the first, in their order, got 2",
                      self.drawn("x", "--checkpoint", "a/model.pth", *several, check=2).stderr)
        self.assertIn("--checkpoint is missing", self.drawn("x", check=2).stderr)

    def test_what_cannot_be_joined_is_named_with_its_files(self):
        self.train_in(self.dir, "a-again", data={"shuffle_train": False})
        again = self.dir / "a-again/checkpoint.pth"
        done = self.join("a/checkpoint.pth", again, self.dir / "x.pth", check=2)
        self.assertIn(f"unet 1: a/checkpoint.pth and {again} both trained it", done.stderr)
        self.assertIn("both trained it", self.join("a/model.pth", self.dir / "a-again/model.pth", self.dir / "x.pth", check=2).stderr)
        self.train_in(self.dir, "b-other", decoder={"timesteps": 40})
        other = self.dir / "b-other/checkpoint.pth"
        done = self.join("a/checkpoint.pth", other, self.dir / "x.pth", check=2)
        self.assertIn(f"{other} and a/checkpoint.pth are not stages of one cascade", done.stderr)
        self.assertIn(f"/decoder/timesteps: {other} has 40, a/checkpoint.pth 50", done.stderr)
        self.train_in(self.dir, "b-steps", decoder={"sample_timesteps": [3, 5]})
        steps = self.dir / "b-steps/checkpoint.pth"
        done = self.join("a/checkpoint.pth", steps, self.dir / "x.pth", check=2)
        self.assertIn(f"{steps} and a/checkpoint.pth draw in different ways", done.stderr)
        self.assertIn("--config", done.stderr)
        self.join("a/checkpoint.pth", steps, self.dir / "x.pth", "--config", self.dir / "b-steps.json")
        self.assertEqual(self.second_stage(self.dir / "x.pth"), self.second_stage(steps, "alone"))
        self.train_in(self.dir, "b-ema", train={"ema": {"kind": "diffusers"}})
        kinds = ["a/checkpoint.pth", self.dir / "b-ema/checkpoint.pth", self.dir / "y.pth"]
        self.assertIn("averages of different kinds", self.join(*kinds, check=2).stderr)
        self.join(*kinds, "--ema")
        self.assertEqual(self.second_stage(self.dir / "y.pth"), self.second_stage(kinds[1], "alone"))
        self.assertIn("expected at least two files", self.join("a/model.pth", self.dir / "x.pth", check=2).stderr)
        before = (self.base / "a/model.pth").read_bytes()
        done = run("convert", "--ema", "a/model.pth", "./a/model.pth", cwd=self.base, check=2)
        self.assertIn("OUT ./a/model.pth: is the file to convert", done.stderr)
        self.assertEqual((self.base / "a/model.pth").read_bytes(), before)
        done = run("convert", "a/model.pth", "b/model.pth", self.dir / "x.pth", cwd=self.base, check=2)
        self.assertIn("--merge joins checkpoints", done.stderr)

    def test_a_run_begun_from_the_other_stage_samples_the_whole_cascade(self):
        base = {"load": {"load_from": "local", "file_path": str(self.base / "a/checkpoint.pth")}}
        dry = self.train_in(self.dir, "b", "--dry-run", tracker=base).stdout
        self.assertRegex(dry, r"would load: .*a/checkpoint.pth")
        done = self.train_in(self.dir, "b", tracker=base)
        self.assertIn("the weights of unet 1, which this run does not train, go into its files unchanged", done.stdout)
        first = self.first_stage("a/checkpoint.pth", "first-of-a")
        pictures = []
        for name in ("checkpoint.pth", "model.pth"):
            file = self.dir / "b" / name
            self.assertEqual(self.first_stage(file), first, name)
            pictures.append(self.whole(file))
        self.assertEqual(*pictures)
        self.assertIn("a run can resume from it", run("fsck", self.dir / "b", cwd=self.dir, check=0).stdout)
        # It is this run that goes on, and its second stage is what it would have been without the first.
        alone = tensors_of("b/checkpoint.pth", self.base)
        carried = tensors_of("b/checkpoint.pth", self.dir)
        self.assertEqual([n for n in alone if n.startswith("unets.1.") and carried[n] != alone[n]], [])
        self.assertIn("having seen 32 samples", self.train_in(self.dir, "b", tracker=base, train={"epochs": 2}).stdout)
        self.assertEqual(self.first_stage(self.dir / "b/checkpoint.pth"), first)
        # Joined with a's file it is a's stage again, which it trained; b's alone has it too.
        self.assertIn("unet 1: a/checkpoint.pth", self.join("a/checkpoint.pth", self.dir / "b/checkpoint.pth", self.dir / "all.pth").stdout)


if __name__ == "__main__":
    harness.main()
