# SPDX-License-Identifier: MIT
"""A run cannot harm itself or another: one run at a time in a folder, nothing overwritten that another run made, no other
config in silence, and a stop that is heard in all phases of a run."""
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import harness
from harness import BINARY, EndToEnd, records, run, write_config, write_npy
from prior_data import make_embeddings, prior_config
from resume_test import saved_state

KINDS = ("decoder", "prior")
CHECKPOINTS = ("latest.pth", "best.pth", "checkpoint.pth", "model.pth")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def said_by(done):
    return done.stdout + done.stderr


class DataPath(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_embeddings(cls.base)
        # A finished run of each kind, which the tests copy: two epochs, one checkpoint of each name.
        cls.finished = pathlib.Path(tempfile.mkdtemp(dir=cls.base))
        for kind in KINDS:
            (cls.finished / kind).mkdir()
            write_config(cls.finished / kind / "config.json", cls.config_of(kind))
            run("--quiet", "--config", "config.json", cwd=cls.finished / kind, check=0)

    @classmethod
    def config_of(cls, kind, **train):
        if kind == "decoder":
            return harness.tiny_config(cls.shards, "out", train={"epochs": 2, "n_sample_images": 0, **train})
        config = prior_config(cls.base, "out", train={"epochs": 2, "eval_timesteps": [4], **train})
        config["tracker"]["save"]["save_best_to"] = "out/best.pth"
        return config

    def copy(self, kind):
        """A copy of the finished run. @return its folder, in which config.json starts it again"""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir)) / kind
        shutil.copytree(self.finished / kind, folder)
        self.assertLessEqual({f"out/{name}" for name in CHECKPOINTS}, self.files(folder))
        return folder

    def start(self, config, cwd, **env):
        process = subprocess.Popen([BINARY, "--config", config], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **env})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def read_until(self, process, text):
        """@return the lines up to the first that has `text`"""
        lines = []
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return lines
        self.fail(f"the run ended before '{text}'\n" + "".join(lines))

    @staticmethod
    def files(folder):
        return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}

    # One run at a time.

    def endless(self, kind):
        """A run that is in its third epoch. @return its folder and its process"""
        folder = self.copy(kind)
        for path in ("latest.pth", "best.pth"):
            (folder / "out" / path).unlink()  # of the original
        write_config(folder / "config.json", self.config_of(kind, epochs=100000))
        first = self.start("config.json", folder)
        self.read_until(first, "Starting epoch 3")
        return folder, first

    def test_a_second_start_in_the_folder_is_refused_and_names_the_first(self):
        folder, first = self.endless("decoder")
        second = run("--config", "config.json", "--set", "/train/epochs=4", cwd=folder, check=2)
        self.assertRegex(second.stderr, rf"a run works in \S*out: process {first.pid} on {socket.gethostname()}")
        self.assertIsNone(first.poll(), "the second start ended the first run")
        first.send_signal(signal.SIGTERM)
        output = first.communicate(timeout=60)[0]
        self.assertEqual(first.returncode, 75, output)
        steps = [record["step"] for record in records(folder / "out") if "step" in record]
        self.assertEqual(steps, sorted(steps), "the second start wrote into the first one's log")
        # A kill releases the folder at once.
        again = self.start("config.json", folder)
        self.read_until(again, "Starting epoch")
        again.kill()
        again.wait()
        done = run("--config", "config.json", "--set", "/train/epochs=3", cwd=folder, check=0)
        self.assertRegex(done.stdout, r"having seen \d+ samples")

    def test_a_sleeper_that_wakes_after_another_start_took_over_writes_nothing(self):
        """As on a file system without locks: the token alone tells the two apart."""
        folder, first = self.endless("prior")
        first.send_signal(signal.SIGSTOP)
        done = run("--config", "config.json", "--set", "/train/epochs=3", cwd=folder, env={"DALLE2_FAIL_AT": "flock:1:eio"}, check=0)
        self.assertIn("cannot be locked here", said_by(done))
        before = {name: digest(folder / "out" / name) for name in self.files(folder / "out")}
        first.send_signal(signal.SIGCONT)
        output = first.communicate(timeout=60)[0]
        self.assertEqual(first.returncode, 2, output)
        self.assertIn("another start has taken this run over", output)
        self.assertEqual({name: digest(folder / "out" / name) for name in self.files(folder / "out")}, before)

    # A new run in the folder of an old one, and an older state of a run.

    def test_fresh_sets_the_whole_folder_aside_and_a_dry_run_says_so(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = self.copy(kind)
                before = {name: digest(folder / "out" / name) for name in self.files(folder / "out")}
                done = run("--config", "config.json", "--fresh", "--dry-run", cwd=folder, check=0)
                self.assertIn("a start renames the whole folder to the first free `data_path.N`", done.stdout)
                done = run("--config", "config.json", "--fresh", "--set", "/train/lr=0.002", cwd=folder, check=0)
                self.assertRegex(said_by(done), r"out is set aside as \S+out\.1: a new run begins")
                self.assertNotRegex(said_by(done), r"having seen \d+ samples")
                self.assertEqual({name: digest(folder / "out.1" / name) for name in self.files(folder / "out.1")
                                  if name != "run.lock"}, {name: value for name, value in before.items() if name != "run.lock"})
                self.assertEqual(len(records(folder / "out")), len(records(folder / "out.1")))

    def test_a_run_goes_back_to_a_snapshot_and_ends_where_it_did(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
        config = self.config_of("decoder", save_every_n_samples=8)
        config["tracker"]["keep_last"] = 20
        write_config(folder / "config.json", config)
        run("--quiet", "--config", "config.json", cwd=folder, check=0)
        whole = saved_state(folder / "out/checkpoint.pth", folder)
        log = records(folder / "out")
        snapshots = sorted((folder / "out/snapshots").glob("epoch*.pth"))
        self.assertGreater(len(snapshots), 3)
        done = run("--config", "config.json", "--back-to", snapshots[1], cwd=folder, check=0)
        self.assertIn("is kept as", said_by(done))
        again = saved_state(folder / "out/checkpoint.pth", folder)
        self.assertEqual(again[0], whole[0])
        self.assertEqual([each.name for each in sorted((folder / "out/abandoned").glob("epoch*.pth"))], [each.name for each in snapshots[2:]])
        told = lambda lines: [{key: value for key, value in line.items() if "loss" in key.lower() or key == "step"} for line in lines]
        self.assertEqual(told(records(folder / "out")), told(log))
        self.assertIn("--back-to absent.pth: expected an intact snapshot of the run in out",
                      run("--config", "config.json", "--back-to", "absent.pth", cwd=folder, check=2).stderr)

    # What a resume finds.

    def changed(self, kind, pointer, value, check, **train):
        """Goes on for an epoch with another value in the config."""
        folder = self.copy(kind)
        config = self.config_of(kind, epochs=3, **train)
        section, *keys = pointer.strip("/").split("/")
        if keys:
            config[section][keys[0]] = value
        else:
            config[section] = value
        write_config(folder / "config.json", config)
        return run("--config", "config.json", cwd=folder, check=check)

    def test_a_resume_with_another_meaning_is_refused_with_both_values(self):
        for kind, pointer, value, old, new in (
                ("decoder", "/decoder/predict_x_start", True, "false", "true"),
                ("decoder", "/decoder/beta_schedule", ["linear"], "null", "linear"),
                ("decoder", "/seed", 1, "0", "1"),
                ("decoder", "/data/splits", {"train": 0.5, "val": 0.25, "test": 0.25}, "0.75", "0.5"),
                ("prior", "/prior/predict_x_start", False, "true", "false"),
                ("prior", "/train/random_seed", 1, "3", "1"),
                ("prior", "/data/splits", {"train": 0.5, "val": 0.25, "test": 0.25}, "0.8", "0.5")):
            with self.subTest(kind=kind, key=pointer):
                done = self.changed(kind, pointer, value, check=2)
                lines = [line for line in said_by(done).splitlines() if re.search(rf"{pointer}\b", line)
                         and re.search(rf"(?<![\w.]){re.escape(old)}(?![\w.])", line)
                         and re.search(rf"(?<![\w.]){re.escape(new)}(?![\w.])", line)]
                self.assertTrue(lines, f"no line has {pointer}, {old} and {new}\n{said_by(done)}")
                self.assertIn("/train/allow_changed_config", said_by(done))

    def test_a_changed_meaning_can_be_allowed(self):
        for kind, pointer, value in (("decoder", "/seed", 1), ("prior", "/train/random_seed", 1)):
            with self.subTest(kind):
                done = self.changed(kind, pointer, value, check=0, allow_changed_config=True)
                self.assertRegex(done.stdout, r"having seen \d+ samples")

    def test_what_may_change_is_told_and_the_run_goes_on(self):
        for kind in KINDS:
            with self.subTest(kind):
                done = self.changed(kind, "/data/batch_size", 4, check=0, lr=0.002)  # and epochs
                self.assertRegex(done.stdout, r"having seen \d+ samples")
                told = [line for line in said_by(done).splitlines() if "/data/batch_size" in line]
                self.assertEqual(len(told), 1, said_by(done))
                for pointer, value in (("/train/lr", r"0\.002"), ("/data/batch_size", "4"), ("/train/epochs", "3")):
                    self.assertRegex(told[0], rf"{pointer}\b.*(?<![\w.]){value}(?![\w.])")

    def test_epochs_below_where_the_checkpoint_stands_are_told(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = self.copy(kind)
                done = run("--config", "config.json", "--set", "/train/epochs=1", cwd=folder, check=0)
                self.assertNotIn("done: 1 epoch", done.stdout)
                self.assertIn("has been trained for 2 epochs and /train/epochs is 1: nothing is left to train", said_by(done))

    def test_a_data_set_of_another_size_is_refused(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = self.copy(kind)
                config = json.loads((folder / "config.json").read_text())
                if kind == "prior":
                    for name in ("image_url", "text_url", "text_encodings_url"):
                        data = folder / name
                        shutil.copytree(config["data"][name], data)
                        rows = 5
                        width = (3, 8) if name == "text_encodings_url" else (8,)
                        write_npy(data / "zz_more.npy", (rows, *width), [0.5] * (rows * math.prod(width)))
                        config["data"][name] = str(data)
                else:
                    shards = folder / "more"
                    shutil.copytree(self.shards, shards)
                    last = sorted(shards.glob("*.tar"))[-1]
                    shutil.copy(last, shards / f"{int(last.stem) + 1:0{len(last.stem)}d}.tar")
                    config["data"]["webdataset_base_url"] = str(shards / "{}.tar")
                    config["data"]["end_shard"] += 1
                config["train"]["epochs"] = 3
                write_config(folder / "config.json", config)
                for dry in ([], ["--dry-run"]):
                    done = run("--config", "config.json", *dry, cwd=folder, check=2)
                    self.assertRegex(said_by(done), r"/data: the checkpoint has a data set of \d+ \w+s, now there are \d+")
                    self.assertIn("/train/allow_changed_config", said_by(done))

    def test_adapters_without_a_base_are_refused(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
                config = self.config_of(kind, lora={"rank": 2})
                config["tracker"]["load"] = {"load_from": None}
                write_config(folder / "config.json", config)
                done = run("--config", "config.json", cwd=folder, check=2)
                self.assertIn("/train/lora", done.stderr)
                self.assertIn("/tracker/load", done.stderr)
                self.assertFalse((folder / "out/checkpoint.pth").exists())

    def test_a_refused_start_leaves_a_lock_at_most(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
                config = self.config_of(kind, epochs=1)
                (folder / "damaged.pth").write_bytes(b"no checkpoint")
                before = self.files(folder) | {"config.json"}
                for file, code in (("damaged.pth", 3), ("absent.pth", 2)):
                    config["tracker"]["load"] = {"load_from": "local", "file_path": file}
                    write_config(folder / "config.json", config)
                    self.assertIn(file, said_by(run("--config", "config.json", cwd=folder, check=code)))
                    self.assertLessEqual(self.files(folder), before | {"out/run.lock"})
                config["tracker"]["load"] = {"load_from": None}
                write_config(folder / "config.json", config)
                run("--config", "config.json", cwd=folder, check=0)

    # A stop is heard in the long phases of a run.

    def compare(self, folder):
        whole, parts = (saved_state(folder / out / "checkpoint.pth", folder) for out in ("whole", "out"))
        self.assertEqual(parts[1], whole[1])
        self.assertGreater(len(whole[0]), 50)
        self.assertEqual(parts[0], whole[0])

    def run_whole(self, folder, config, begins):
        """Runs to the end and leaves the results in `whole`. Returns the seconds from the line that has `begins`."""
        write_config(folder / "config.json", config)
        process = self.start("config.json", folder)
        self.read_until(process, begins)
        begin = time.monotonic()
        output = process.communicate(timeout=200)[0]
        seconds = time.monotonic() - begin
        self.assertEqual(process.returncode, 0, output)
        (folder / "out").rename(folder / "whole")
        return seconds

    def stop_and_compare(self, config_with, begins, wait=0.0):
        """Runs to the end; then again, with a signal `wait` seconds behind the line that has `begins`, and on to the end.
        Both have to leave the same. `config_with` makes a config with a given amount of work behind that line; the amount
        is doubled until this machine takes long enough over it to tell whether the stop is heard."""
        for amount in (1, 2, 4, 8, 16, 32):
            folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
            config = config_with(amount)
            phase = self.run_whole(folder, config, begins)
            if phase > 3 + 2 * wait:
                break
        else:
            self.fail(f"32 times the work took only {phase} s")

        parts = self.start("config.json", folder)
        self.read_until(parts, begins)
        time.sleep(wait)
        begin = time.monotonic()
        parts.send_signal(signal.SIGTERM)
        output = parts.communicate(timeout=200)[0]
        self.assertEqual(parts.returncode, 75, output)
        self.assertLess(time.monotonic() - begin, 0.75 * (phase - wait), output)
        run("--config", "config.json", cwd=folder, check=0)
        self.compare(folder)
        return folder

    def test_a_signal_while_pictures_are_drawn_is_heard_between_them(self):
        def config_with(amount):
            config = self.config_of("decoder", epochs=1, n_sample_images=10)
            config["data"]["batch_size"] = 1
            config["train"]["epoch_samples"] = 8
            config["decoder"]["timesteps"] = config["decoder"]["sample_timesteps"] = 50 * amount
            return config

        self.stop_and_compare(config_with, "Sampling and saving after epoch 0")

    def test_a_signal_in_the_validation_of_a_decoder_is_heard_between_its_batches(self):
        def config_with(amount):
            config = self.config_of("decoder", epochs=1)
            config["data"].update(batch_size=1, splits={"train": 0.2, "val": 0.7, "test": 0.1})
            config["decoder"]["unets"][0].update(dim=64, num_resnet_blocks=2 * amount)
            return config

        self.stop_and_compare(config_with, "Epoch 0/1 Val Step 0")

    def test_a_signal_in_the_last_validation_of_a_prior_is_heard_between_its_batches(self):
        def config_with(amount):
            rows = 2000 * amount
            embeddings = self.dir / f"many{amount}"
            embeddings.mkdir()
            make_embeddings(embeddings, rows)
            config = self.config_of("prior", epochs=1)
            config["data"].update({key: str(embeddings / name) for key, name in
                                   (("image_url", "images"), ("text_url", "texts"), ("text_encodings_url", "encodings"))},
                                  batch_size=1, splits={"train": 4 / rows, "val": 1 - 8 / rows, "test": 4 / rows})
            config["train"]["eval_timesteps"] = [4, 20]
            return config

        folder = self.stop_and_compare(config_with, "Starting epoch 0", wait=0.5)
        losses = [[value for record in records(folder / out) for key, value in record.items()
                   if key in ("metrics/ema-validation/l2-loss", "metrics/ema-test/l2-loss")] for out in ("whole", "out")]
        self.assertEqual(len(losses[0]), 2)
        self.assertEqual(losses[0], losses[1])


if __name__ == "__main__":
    harness.main()
