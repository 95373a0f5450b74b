# SPDX-License-Identifier: MIT
"""kill -9 at any moment of a save never leaves a run without a checkpoint that loads."""
import os
import random
import signal
import subprocess
import time
import unittest

import harness
from harness import BINARY, EndToEnd, run

# Saves after every batch and keeps no pictures: most of the run is spent in saves.
SAVING = {"epochs": 50, "n_sample_images": 0, "save_every_n_samples": 1}


class Kill(EndToEnd):
    def start(self, config, **env):
        return subprocess.Popen([BINARY, "--quiet", "--config", config], cwd=self.dir, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1", **env})

    def check_checkpoints_load(self, must_exist):
        found = [name for name in ("out/checkpoint.pth", "out/latest.pth", "out/model.pth") if (self.dir / name).exists()]
        for name in found:
            run("inspect", name, cwd=self.dir, check=0)
        if must_exist:
            self.assertIn("out/checkpoint.pth", found)

    def test_25_kills_at_random_moments_between_and_within_saves(self):
        config = self.config(train=SAVING)
        draw = random.Random(20)
        seen = 0
        for kill in range(25):
            process = self.start(config)
            saved = False
            deadline = time.time() + 60
            while time.time() < deadline:
                line = process.stdout.readline()
                if "Saving snapshot" in line or "Saved cached models" in line:
                    saved = True
                    break
                if line == "" and process.poll() is not None:
                    break
            self.assertTrue(saved, f"kill {kill}: the run ended before it saved")
            time.sleep(draw.uniform(0, 0.06))
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            # at the very first save the kill may come before there is any
            self.check_checkpoints_load(must_exist=kill > 0)
        whole = self.config("last.json", train={**SAVING, "epochs": 1})
        process = self.start(whole)
        output, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("having seen", output)
        self.assertFalse(list((self.dir / "out").rglob("*.part")))

    def test_an_abort_or_a_full_disk_at_each_call_of_a_save_keeps_the_older_checkpoint(self):
        config = self.config(train=SAVING)
        process = self.start(config)
        while "Saving snapshot" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        time.sleep(0.5)
        process.kill()
        process.wait()
        process.stdout.close()
        self.check_checkpoints_load(must_exist=True)
        for call in ("open", "write", "fsync", "rename", "dirsync"):
            for how in ("abort", "enospc", "eio"):
                # The first saved files of a start are decoder_config.json's copies; the third is a checkpoint.
                process = self.start(config, DALLE2_FAIL_AT=f"{call}:3:{how}")
                try:
                    output, _ = process.communicate(timeout=20)
                except subprocess.TimeoutExpired:  # the failed file was one whose loss the run survives
                    process.kill()
                    output, _ = process.communicate()
                else:
                    self.assertNotEqual(process.returncode, 0, f"{call} {how}\n{output}")
                self.check_checkpoints_load(must_exist=True)
        resumed = self.start(self.config("last.json", train={**SAVING, "epochs": 1}))
        output, _ = resumed.communicate(timeout=120)
        self.assertEqual(resumed.returncode, 0, output)


if __name__ == "__main__":
    harness.main()
