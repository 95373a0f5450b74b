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

    def test_fsck_names_files_that_another_run_saved(self):
        folder = self.copy("prior")
        run("--quiet", "--config", "config.json", "--set", "/tracker/data_path=other", "--set",
            '/tracker/save={"save_to": "local", "save_latest_to": "other.pth"}', cwd=folder, check=0)
        told = "checkpoint.pth: saved by run "
        self.assertNotIn(told, run("fsck", "out", cwd=folder, check=0).stdout)
        shutil.copy(folder / "other" / "checkpoint.pth", folder / "out" / "replaced")
        (folder / "out" / "replaced").rename(folder / "out" / "checkpoint.pth")
        shutil.copy(folder / "other" / "checkpoint.pth", folder / "out" / "loaded_checkpoint.pth")  # what a run began from
        text = run("fsck", "out", cwd=folder, check=0).stdout
        ids = [json.loads((folder / name / "targets.json").read_text())["run_id"] for name in ("other", "out")]
        self.assertIn(f"out/checkpoint.pth: saved by run {ids[0]}, not by the run of this folder ({ids[1]}), which does not resume from it", text)
        self.assertEqual(text.count(": saved by run "), 1)

    def test_a_dry_run_refuses_the_renames_that_the_run_refuses(self):
        folder = self.copy("prior")
        run("--quiet", "--config", "config.json", "--set", "/tracker/data_path=other", "--set",
            '/tracker/save={"save_to": "local", "save_latest_to": "other.pth"}', cwd=folder, check=0)
        url = json.loads((folder / "config.json").read_text())["data"]["image_url"]
        shutil.copytree(url, folder / "out" / "images" / "embedded")
        before = self.files(folder / "out")
        for more in (["--dry-run"], []):  # it would begin anew, from the weights of another run
            done = run("--config", "config.json", *more, "--set", "/data/image_url=out/images/embedded", "--set",
                       '/tracker/load={"load_from": "local", "file_path": "other.pth"}', cwd=folder, check=2)
            self.assertIn("/tracker/data_path out: a run keeps images there, and /data/image_url reads 'out/images/embedded'", said_by(done))
        self.assertEqual(self.files(folder / "out"), before)

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

    def test_a_second_run_in_the_folder_is_refused_and_names_the_first(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = self.copy(kind)
                write_config(folder / "config.json", self.config_of(kind, epochs=100000))
                first = self.start("config.json", folder)
                self.read_until(first, "Starting epoch 3")
                second = run("--config", "config.json", "--set", "/train/epochs=4", cwd=folder, check=2)
                self.assertRegex(second.stderr, rf"\b{first.pid}\b")
                self.assertIn(socket.gethostname(), second.stderr)
                self.assertIn("out", second.stderr)
                self.assertIsNone(first.poll(), "the second start ended the first run")
                first.send_signal(signal.SIGTERM)
                output = first.communicate(timeout=60)[0]
                self.assertEqual(first.returncode, 75, output)
                steps = [record["step"] for record in records(folder / "out")]
                self.assertEqual(steps, sorted(steps), "the second run wrote into the first one's log")

    def test_the_folder_of_a_run_that_was_killed_is_taken_over(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = self.copy(kind)
                write_config(folder / "config.json", self.config_of(kind, epochs=100000))
                first = self.start("config.json", folder)
                self.read_until(first, "Starting epoch 3")
                first.kill()
                first.wait()
                done = run("--config", "config.json", "--set", "/train/epochs=3", cwd=folder, check=0)
                self.assertRegex(done.stdout, r"having seen \d+ samples")

    # A start from zero keeps what it did not make.

    def check_kept(self, before, folder, output):
        """Each of the files (digest by name) is still in the folder, and a line names it, or the new folder it is in."""
        older = {str(pathlib.Path(name).parent) for name in before}
        for name, wanted in before.items():
            found = [path for path in self.files(folder) if digest(folder / path) == wanted]
            self.assertTrue(found, f"{name} is lost\n{output}")
            names = {name for path in found for name in (path, str(pathlib.Path(path).parent)) if name not in older}
            if name not in found:
                self.assertTrue(any(pathlib.Path(name).name in output for name in names),
                                f"{name} is now {found}, which no line says\n{output}")

    def start_from_zero(self, kind, *arguments, prepare=None, check=0):
        folder = self.copy(kind)
        before = {f"out/{name}": digest(folder / "out" / name) for name in CHECKPOINTS}
        if prepare:
            before.update(prepare(folder) or {})
        done = run("--config", "config.json", *arguments, cwd=folder, check=check)
        self.assertNotRegex(said_by(done), r"having seen \d+ samples")
        self.check_kept(before, folder, said_by(done))
        if check == 0:
            for name in CHECKPOINTS:
                self.assertNotEqual(digest(folder / "out" / name), before[f"out/{name}"], f"{name} was not written anew")
            self.assertEqual(len(records(folder / "out")), len(records(self.finished / kind / "out")))
        return folder, done

    def test_without_auto_resume_json_the_older_checkpoints_are_moved_aside(self):
        for kind in KINDS:
            with self.subTest(kind):
                # Other weights, so that a copy cannot be mistaken for what was there.
                self.start_from_zero(kind, "--set", "/train/lr=0.002",
                                     prepare=lambda folder: (folder / "out/auto_resume.json").unlink())

    def test_with_auto_resume_off_the_older_checkpoints_are_moved_aside(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.start_from_zero(kind, "--set", "/train/lr=0.002", "--set", "/tracker/log/auto_resume=false")

    def test_a_checkpoint_copied_to_a_new_place_is_moved_aside(self):
        def copy_latest(folder):
            (folder / "new").mkdir()
            shutil.copy(folder / "out/latest.pth", folder / "new/latest.pth")
            return {"new/latest.pth": digest(folder / "new/latest.pth")}

        for kind in KINDS:
            with self.subTest(kind):
                folder = self.copy(kind)
                before = copy_latest(folder)
                shutil.rmtree(folder / "out")
                done = run("--config", "config.json", "--set", "/train/lr=0.002", "--set", "/tracker/data_path=new",
                           "--set", "/tracker/save/save_latest_to=new/latest.pth",
                           "--set", "/tracker/save/save_best_to=new/best.pth",
                           "--set", "/tracker/load/file_path=new/latest.pth", cwd=folder, check=0)
                self.assertNotRegex(said_by(done), r"having seen \d+ samples")
                self.assertNotEqual(digest(folder / "new/latest.pth"), before["new/latest.pth"])
                self.check_kept(before, folder, said_by(done))

    def test_another_seed_in_the_same_folder_overwrites_nothing(self):
        for kind, seed in (("decoder", "/seed=5"), ("prior", "/train/random_seed=5")):
            with self.subTest(kind, start="from zero"):
                self.start_from_zero(kind, "--set", seed, prepare=lambda folder: (folder / "out/auto_resume.json").unlink())
            with self.subTest(kind, start="auto-resume"):
                folder, _ = self.start_from_zero(kind, "--set", seed, check=2)
                for name in CHECKPOINTS:
                    self.assertEqual(digest(folder / "out" / name), digest(self.finished / kind / "out" / name))

    def test_how_to_go_on_from_what_was_moved_aside_is_said_and_works(self):
        folder, done = self.start_from_zero("decoder", "--set", "/train/lr=0.002",
                                            prepare=lambda folder: (folder / "out/auto_resume.json").unlink())
        old = digest(self.finished / "decoder/out/latest.pth")
        moved = next(path for path in self.files(folder) if digest(folder / path) == old)
        self.assertRegex(said_by(done), r"file_path")
        done = run("--config", "config.json", "--set", "/tracker/data_path=again", "--set", f"/tracker/load/file_path={moved}",
                   "--set", "/tracker/load/only_auto_resume=false", "--set", "/train/epochs=3", cwd=folder, check=0)
        self.assertRegex(done.stdout, rf"Loaded model from {re.escape(moved)} .*having seen \d+ samples")

    # What a resume finds.

    def test_auto_resume_without_a_checkpoint_says_so_and_begins_a_new_log(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = self.copy(kind)
                log = (folder / "out/log.jsonl").read_bytes()
                before = records(folder / "out")
                for path in (folder / "out").rglob("*.pth"):
                    path.unlink()
                done = run("--config", "config.json", cwd=folder, check=0)
                self.assertRegex(said_by(done), r"(?i)no checkpoint")
                kept = [path for path in self.files(folder) if (folder / path).read_bytes() == log]
                self.assertTrue(kept, f"the log of the older run is lost\n{said_by(done)}")
                self.assertIn(pathlib.Path(kept[0]).name, said_by(done))
                after = records(folder / "out")
                self.assertEqual([record["step"] for record in after], [record["step"] for record in before])

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

    def test_a_refused_start_leaves_nothing_behind(self):
        for kind in KINDS:
            with self.subTest(kind):
                folder = pathlib.Path(tempfile.mkdtemp(dir=self.dir))
                config = self.config_of(kind, epochs=1)
                config["tracker"]["overwrite_data_path"] = False
                (folder / "damaged.pth").write_bytes(b"no checkpoint")
                before = self.files(folder) | {"config.json"}
                for file, code in (("damaged.pth", 3), ("absent.pth", 2)):
                    config["tracker"]["load"] = {"load_from": "local", "file_path": file}
                    write_config(folder / "config.json", config)
                    self.assertIn(file, said_by(run("--config", "config.json", cwd=folder, check=code)))
                    self.assertEqual(self.files(folder), before)
                    self.assertFalse((folder / "out").exists())
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
