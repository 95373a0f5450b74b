# SPDX-License-Identifier: MIT
"""A dry run finds what the run would find, tells right sizes, and leaves nothing behind."""
import pathlib
import re
import signal
import subprocess
import tempfile

import harness
from harness import EndToEnd, run, write_config
from prior_data import make_embeddings, prior_config

KINDS = ("decoder", "prior")
UNITS = {"KiB": 1024, "MiB": 1024 ** 2}


class DryRun(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_embeddings(cls.base)

    def config_of(self, kind, out="out", **sections):
        if kind == "prior":
            return prior_config(self.base, out, **sections)
        return harness.tiny_config(self.shards, out, **sections)

    def start(self, config, *arguments, check):
        write_config(self.dir / "config.json", config)
        before = sorted(self.dir.rglob("*"))
        done = run("--config", "config.json", *arguments, cwd=self.dir, check=check)
        if "--dry-run" in arguments:
            self.assertEqual(sorted(self.dir.rglob("*")), before)
        return done

    def for_each_kind(self):
        for kind in KINDS:
            self.dir = pathlib.Path(tempfile.mkdtemp(dir=self.base))
            with self.subTest(kind):
                yield kind

    def test_both_kinds_say_the_same_things(self):
        labels = {}
        for kind in self.for_each_kind():
            done = self.start(self.config_of(kind), "--dry-run", check=0)
            labels[kind] = [re.sub(r"^(unet 1|network)$", "network", line.split(":")[0])
                            for line in done.stdout.splitlines() if not line.startswith("[")]
        self.assertEqual(labels["decoder"], labels["prior"])
        self.assertEqual(labels["prior"], ["network", "train", "val", "test", "samples per epoch", "steps", "checkpoint", "arithmetic",
                                           "peak memory of the process", "nothing was trained or written (--dry-run)"])

    def test_pictures_that_are_smaller_than_the_unet_are_found_before_anything_is_written(self):
        config = self.config_of("decoder", data={"preprocessing": {"Resize": {"size": 8}, "ToTensor": True}})
        for more in (["--dry-run"], []):
            done = self.start(config, *more, check=3)
            self.assertRegex(done.stderr, r"sample \d+: images: expected at least 16 x 16 pixels, the unet's size, got 8 x 8")
        self.assertEqual(harness.left_by_refused_start(self.dir / "out"), [])

    def test_the_size_of_a_checkpoint_is_that_of_the_file(self):
        for kind in self.for_each_kind():
            # Large enough that tensors outweigh names.
            wide = ({"prior": {**prior_config(self.base, "")["prior"], "net": {
                "dim": 8, "depth": 6, "dim_head": 64, "heads": 8, "max_text_len": 4}}} if kind == "prior" else {})
            for use_ema in (True, False):
                config = self.config_of(kind, f"out{use_ema}", **wide)
                config["train"].update({"use_ema": use_ema, "epochs": 1})
                told = self.start(config, "--dry-run", check=0).stdout
                number, unit = re.search(r"checkpoint: about ([\d.]+) (KiB|MiB)", told).groups()
                self.start(config, check=0)
                real = (self.dir / f"out{use_ema}" / "checkpoint.pth").stat().st_size
                self.assertAlmostEqual(float(number) * UNITS[unit] / real, 1, delta=0.15, msg=told)

    def test_a_stage_that_is_not_trained_counts_nowhere(self):
        config = self.config_of("decoder")
        one = self.start(config, "--dry-run", check=0).stdout
        unet = config["decoder"]["unets"][0]
        del config["decoder"]["image_size"]
        config["decoder"].update({"unets": [unet, unet], "image_sizes": [16, 32], "sample_timesteps": [3, 3]})
        config["train"]["unet_training_mask"] = [True, False]
        masked = self.start(config, "--dry-run", check=0).stdout
        self.assertIn("unet 2: not trained, takes no memory", masked)
        size = r"checkpoint: about [\d.]+ .iB, model file: about [\d.]+ .iB"
        self.assertEqual(re.search(size, masked).group(), re.search(size, one).group())

    def test_several_processes_are_foreseen(self):
        for kind in self.for_each_kind():
            config = self.config_of(kind)
            config["train"]["epochs"] = 2
            told = {number: self.start(config, "--dry-run", "--nproc-per-node", number, check=0).stdout for number in (1, 2)}
            samples, steps = (int(re.search(fr"^{what}: (\d+)", told[1], re.MULTILINE).group(1)) for what in ("samples per epoch", "steps"))
            batch = config["data"]["batch_size"]
            self.assertEqual(steps, -(-samples // batch))
            self.assertIn(f"steps: {-(-samples // (2 * batch))} per epoch", told[2])
            self.assertIn("peak memory of the process: about ", told[1])
            self.assertIn("peak memory of each process: about ", told[2])

    def test_more_memory_than_there_is_is_refused(self):
        config = self.config_of("decoder")
        config["data"]["batch_size"] = 1_000_000
        config["decoder"]["unets"][0]["dim"] = 128
        for processes, text in ((1, "1 process"), (2, "2 processes")):
            done = self.start(config, "--dry-run", "--nproc-per-node", processes, check=2)
            self.assertRegex(done.stderr, text + r" would take about [\d.]+ [GT]iB, and this machine has [\d.]+ [GT]iB")
            self.assertIn("Lower /data/batch_size", done.stderr)

    def test_paths_that_cannot_be_written_are_found(self):
        for kind in self.for_each_kind():
            (self.dir / "file").write_text("in the way")
            self.assertIn("/tracker/data_path", self.start(self.config_of(kind, "file/out"), "--dry-run", check=2).stderr)
            config = self.config_of(kind)
            config["tracker"]["save"]["save_latest_to"] = "file/latest.pth"
            done = self.start(config, "--dry-run", check=2)
            self.assertIn("file/latest.pth", done.stderr)
            self.assertIn("/tracker/save", done.stderr)

    def catches(self, process, number):
        mask = re.search(r"^SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        return mask is not None and bool(int(mask.group(1), 16) >> (number - 1) & 1)

    def test_a_signal_ends_it_at_once(self):
        config = self.config_of("decoder")
        config["decoder"]["unets"][0].update({"dim": 256, "dim_mults": [1, 2, 4]})
        write_config(self.dir / "config.json", config)
        process = harness.start("--config", "/dev/stdin", "--dry-run", cwd=self.dir, stdin=subprocess.PIPE)
        for caught in (True, False):  # the handlers of a start are put in place, and taken away for a dry run
            harness.wait_for(process, lambda caught=caught: self.catches(process, signal.SIGINT) == caught)
            if caught:
                process.stdin.write((self.dir / "config.json").read_text())
                process.stdin.close()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
        self.assertEqual(process.returncode, -signal.SIGINT, process.stdout.read())

    def test_a_file_that_does_not_fit_the_model_is_found(self):
        for kind in self.for_each_kind():
            self.start(self.config_of(kind, "first"), check=0)
            config = self.config_of(kind)
            config["tracker"]["load"] = {"load_from": "local", "file_path": "first/latest.pth"}
            self.assertIn("would load: first/latest.pth", self.start(config, "--dry-run", check=0).stdout)
            config["train"]["allow_changed_config"] = True
            if kind == "prior":
                config["prior"]["net"]["depth"] = 2
            else:
                config["decoder"]["unets"][0]["dim"] = 16
            self.assertRegex(self.start(config, "--dry-run", check=3).stderr, r"first/latest.pth.*\n?(.|\n)*(net\.|unets\.0\.)")
            other = self.config_of(KINDS[1 - KINDS.index(kind)])
            other["tracker"]["load"] = config["tracker"]["load"]
            self.assertIn("expected a checkpoint of a", self.start(other, "--dry-run", check=3).stderr)

    def test_what_a_run_would_go_on_from_is_looked_at(self):
        for kind in self.for_each_kind():
            config = self.config_of(kind)
            config["train"]["epochs"] = 2
            self.start(config, check=0)
            self.assertIn("would load: ", self.start(config, "--dry-run", check=0).stdout)
            few = self.start(config, "--dry-run", "--set", "/train/epochs=1", check=0)
            self.assertIn("has been trained for 2 epochs and /train/epochs is 1", few.stdout + few.stderr)
            done = self.start(config, "--dry-run", "--set", f"/{kind}/predict_v=true", check=2)
            self.assertIn("another meaning", done.stderr)
            self.assertIn(f"/{kind}/predict_v", done.stderr)
            self.assertIn("a run that fits the config: a start resumes", self.start(config, "--dry-run", check=0).stdout)
            done = self.start(config, "--dry-run", "--set", '/tracker/log={"log_type": "console"}', check=0)
            self.assertIn("out: a run: a start renames the whole folder", done.stdout)


if __name__ == "__main__":
    harness.main()
