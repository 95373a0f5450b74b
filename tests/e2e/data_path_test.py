# SPDX-License-Identifier: MIT
"""A run cannot harm itself or another: one run at a time in a folder, nothing overwritten that another run made, and a stop that is heard
while pictures are drawn."""
import hashlib
import shutil
import signal
import socket
import time

import harness
from harness import EndToEnd, records, run, write_config
from prior_data import make_embeddings, prior_config
from resume_test import saved_state


class DataPath(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_embeddings(cls.base)
        # A finished run of two epochs, which the tests copy; config.json starts it again.
        cls.finished = cls.base / "finished"
        cls.finished.mkdir()
        write_config(cls.finished / "config.json", cls.config_of("decoder"))
        run("--quiet", "--config", "config.json", cwd=cls.finished, check=0)

    @classmethod
    def config_of(cls, kind, out="out", **train):
        if kind == "decoder":
            return harness.tiny_config(cls.shards, out, train={"epochs": 2, "n_sample_images": 0, **train})
        return prior_config(cls.base, out, train={"epochs": 2, "eval_timesteps": [4], **train})

    def start(self):
        process = harness.start("--config", "config.json", cwd=self.dir)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def read_until(self, process, text):
        lines = []
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return
        self.fail(f"the run ended before '{text}'\n" + "".join(lines))

    def digests(self, folder):
        return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*")
                if path.is_file() and path.name != "run.lock"}

    def test_a_second_start_in_the_folder_is_refused_and_names_the_first(self):
        shutil.copytree(self.finished, self.dir, dirs_exist_ok=True)
        write_config(self.dir / "config.json", self.config_of("decoder", epochs=100000))
        first = self.start()
        self.read_until(first, "Starting epoch 3")
        second = run("--config", "config.json", "--set", "/train/epochs=4", cwd=self.dir, check=2)
        self.assertRegex(second.stderr, rf"a run works in \S*out: process {first.pid} on {socket.gethostname()}")
        self.assertIsNone(first.poll(), "the second start ended the first run")
        first.send_signal(signal.SIGTERM)
        output = first.communicate(timeout=60)[0]
        self.assertEqual(first.returncode, 75, output)
        steps = [record["step"] for record in records(self.dir / "out") if "step" in record]
        self.assertEqual(steps, sorted(steps), "the second start wrote into the first one's log")
        # A kill releases the folder at once.
        again = self.start()
        self.read_until(again, "Starting epoch")
        again.kill()
        again.wait()
        done = run("--config", "config.json", "--set", "/train/epochs=3", cwd=self.dir, check=0)
        self.assertRegex(done.stdout, r"having seen \d+ samples")

    def test_fresh_sets_the_whole_folder_aside_and_a_dry_run_says_so(self):
        shutil.copytree(self.finished, self.dir, dirs_exist_ok=True)
        before = self.digests(self.dir / "out")
        done = run("--config", "config.json", "--fresh", "--dry-run", cwd=self.dir, check=0)
        self.assertIn("a start renames the whole folder to the first free `data_path.N`", done.stdout)
        done = run("--config", "config.json", "--fresh", "--set", "/train/lr=0.002", cwd=self.dir, check=0)
        self.assertRegex(done.stdout + done.stderr, r"out is set aside as \S+out\.1: a new run begins")
        self.assertNotRegex(done.stdout + done.stderr, r"having seen \d+ samples")
        self.assertEqual(self.digests(self.dir / "out.1"), before)
        self.assertEqual(len(records(self.dir / "out")), len(records(self.dir / "out.1")))

    def test_a_run_goes_back_to_a_snapshot_and_ends_where_it_did(self):
        config = self.config_of("decoder", save_every_n_samples=8)
        config["tracker"]["keep_last"] = 20
        write_config(self.dir / "config.json", config)
        run("--quiet", "--config", "config.json", cwd=self.dir, check=0)
        whole = saved_state(self.dir / "out/checkpoint.pth", self.dir)
        log = records(self.dir / "out")
        snapshots = sorted((self.dir / "out/snapshots").glob("epoch*.pth"))
        self.assertGreater(len(snapshots), 3)
        done = run("--config", "config.json", "--back-to", snapshots[1], cwd=self.dir, check=0)
        self.assertIn("is kept as", done.stdout + done.stderr)
        self.assertEqual(saved_state(self.dir / "out/checkpoint.pth", self.dir)[0], whole[0])
        abandoned = sorted((self.dir / "out/abandoned").glob("epoch*.pth"))
        self.assertEqual([each.name for each in abandoned], [each.name for each in snapshots[2:]])
        told = lambda lines: [{key: value for key, value in line.items() if "loss" in key.lower() or key == "step"} for line in lines]
        self.assertEqual(told(records(self.dir / "out")), told(log))

    def test_a_refused_start_leaves_a_lock_at_most(self):
        for kind in ("decoder", "prior"):
            with self.subTest(kind):
                config = self.config_of(kind, out=kind, epochs=1)
                (self.dir / "damaged.pth").write_bytes(b"no checkpoint")
                for file, code in (("damaged.pth", 3), ("absent.pth", 2)):
                    config["tracker"]["load"] = {"load_from": "local", "file_path": file}
                    write_config(self.dir / "config.json", config)
                    done = run("--config", "config.json", cwd=self.dir, check=code)
                    self.assertIn(file, done.stdout + done.stderr)
                    self.assertEqual(harness.left_by_refused_start(self.dir / kind), [])
                config["tracker"]["load"] = {"load_from": None}
                write_config(self.dir / "config.json", config)
                run("--config", "config.json", cwd=self.dir, check=0)

    def test_a_signal_while_pictures_are_drawn_is_heard_between_them(self):
        config = self.config_of("decoder", epochs=1, n_sample_images=10, epoch_samples=8)
        config["data"]["batch_size"] = 1
        config["decoder"]["timesteps"] = config["decoder"]["sample_timesteps"] = 3000  # seconds for each of the pictures
        write_config(self.dir / "config.json", config)
        process = self.start()
        self.read_until(process, "Sampling and saving after epoch 0")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=100)[0]
        self.assertEqual(process.returncode, 75, output)
        self.assertLess(time.monotonic() - begin, 20, output)
        stopped = saved_state(self.dir / "out/checkpoint.pth", self.dir)
        self.assertGreater(len(stopped[0]), 50)
        done = run("--config", "config.json", "--set", "/train/n_sample_images=1", cwd=self.dir, check=0)
        self.assertIn("Resuming with sampling and saving after epoch 0", done.stdout)
        self.assertEqual(saved_state(self.dir / "out/checkpoint.pth", self.dir)[0], stopped[0])


if __name__ == "__main__":
    harness.main()
