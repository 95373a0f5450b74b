# SPDX-License-Identifier: MIT
"""A run cannot harm itself or another: one run at a time in a folder, nothing overwritten that another run made, and a stop that is heard
while pictures are drawn."""
import shutil
import signal
import socket
import time

import harness
from harness import EndToEnd, records, run, saved_state, write_config


class DataPath(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A finished run of two epochs, which the tests copy; config.json starts it again.
        cls.finished = cls.base / "finished"
        cls.finished.mkdir()
        write_config(cls.finished / "config.json", cls.config_of())
        run("--quiet", "--config", "config.json", cwd=cls.finished, check=0)

    @classmethod
    def config_of(cls, **train):
        return harness.tiny_config(cls.shards, "out", train={"epochs": 2, "n_sample_images": 0, **train})

    def read_until(self, process, text):
        lines = []
        for line in process.stdout:
            lines.append(line)
            if text in line:
                return
        self.fail(f"the run ended before '{text}'\n" + "".join(lines))

    def test_a_second_start_in_the_folder_is_refused_and_names_the_first(self):
        shutil.copytree(self.finished, self.dir, dirs_exist_ok=True)
        write_config(self.dir / "config.json", self.config_of(epochs=100000))
        first = self.start("--config", "config.json")
        self.read_until(first, "Starting epoch 3")
        second = run("--config", "config.json", "--set", "/train/epochs=4", cwd=self.dir, check=2)
        self.assertRegex(second.stderr, rf"a run works in \S*out: process {first.pid} on {socket.gethostname()}")
        self.assertIsNone(first.poll(), "the second start ended the first run")
        first.send_signal(signal.SIGTERM)
        self.end_of(first, 75)
        steps = [record["step"] for record in records(self.dir / "out") if "step" in record]
        self.assertEqual(steps, sorted(steps), "the second start wrote into the first one's log")
        # A kill releases the folder at once.
        again = self.start("--config", "config.json")
        self.read_until(again, "Starting epoch")
        again.kill()
        again.wait()
        self.assertRegex(run("--config", "config.json", "--set", "/train/epochs=3", cwd=self.dir, check=0).stdout, r"having seen \d+ samples")

    def test_a_signal_while_pictures_are_drawn_is_heard_between_them(self):
        config = self.config_of(epochs=1, n_sample_images=10, epoch_samples=8)
        config["data"]["batch_size"] = 1
        config["decoder"]["timesteps"] = config["decoder"]["sample_timesteps"] = 3000  # seconds for each of the pictures
        write_config(self.dir / "config.json", config)
        process = self.start("--config", "config.json")
        self.read_until(process, "Sampling and saving after epoch 0")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        output = self.end_of(process, 75)
        self.assertLess(time.monotonic() - begin, 20, output)
        stopped = saved_state(self.dir / "out/checkpoint.pth", self.dir)
        self.assertGreater(len(stopped[0]), 50)
        done = run("--config", "config.json", "--set", "/train/n_sample_images=1", cwd=self.dir, check=0)
        self.assertIn("Resuming with sampling and saving after epoch 0", done.stdout)
        self.assertEqual(saved_state(self.dir / "out/checkpoint.pth", self.dir)[0], stopped[0])


if __name__ == "__main__":
    harness.main()
