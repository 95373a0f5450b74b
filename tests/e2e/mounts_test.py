# SPDX-License-Identifier: MIT
"""A run whose folder is a mount point, lies on another disk than the copies of its files, or is a link to such a place: it
stops, resumes, goes back and is set aside as anywhere. Where one rename cannot set it aside, nothing is lost.

The whole file runs in a mount namespace of its own.
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

import harness
from harness import EndToEnd, logged_losses, run, saved_state

OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
HAS_OWN_MOUNTS = bool(shutil.which("unshare")) and subprocess.run(
    [*OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True).returncode == 0


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def mount_disk(folder):
    folder.mkdir()
    mount("-t", "tmpfs", "none", folder)
    return folder


def id_of(folder):
    return json.loads((folder / "run.json").read_text())["id"]


@unittest.skipUnless(HAS_OWN_MOUNTS, "needs the right to mount in a namespace of its own (unshare --user --mount)")
class Mounts(EndToEnd):
    def prepare(self):
        """A folder for a case, with its config. @return the data_path in it"""
        self.setUp()
        self.config(train={"epochs": 2, "n_sample_images": 0, "save_every_n_samples": 24}, tracker={
            "keep_last": 20, "overwrite_data_path": False, "load": {"load_from": None},
            "save": {"save_to": "local", "save_latest_to": "copies/latest.pth", "save_best_to": "copies/best.pth",
                     "save_meta_to": "copies"}})
        return self.dir / "out"

    def start(self, *arguments, check=0):
        return run("--config", "config.json", *arguments, cwd=self.dir, check=check)

    def left(self, out):
        copies = self.dir / "copies"
        self.assertEqual(sorted(os.listdir(copies)), ["best.pth", "decoder_config.json", "latest.pth"])
        return ([saved_state(path, self.dir) for path in (out / "checkpoint.pth", copies / "latest.pth", copies / "best.pth")],
                logged_losses(out))

    def whole(self):
        """What a run without a stop leaves in a folder like any other."""
        out = self.prepare()
        self.start()
        return self.left(out)

    def stop_resume_and_go_back(self, out, expected):
        self.train_until("config.json", "Saving snapshot of epoch 1")
        self.assertIn("having seen", self.start().stdout)
        self.assertEqual(self.left(out), expected)
        snapshots = sorted((out / "snapshots").glob("epoch*.pth"))
        self.assertIn("is kept as", self.start("--back-to", snapshots[1]).stdout)
        self.assertEqual(self.left(out), expected)
        self.assertTrue({path.name for path in snapshots[2:]} <= set(os.listdir(out / "abandoned")))

    def refused(self, real):
        """--fresh ends with exit 2 and changes nothing. @return the commands that the message gives"""
        def files():
            return {path.name: path.stat().st_mtime_ns for path in real.iterdir() if path.name != "run.lock"}
        before = files()
        (self.dir / "copies").rename(self.dir / "away")
        done = self.start("--fresh", check=2)
        self.assertIn(f"out holds a run and cannot be set aside as a whole: {real}: cannot rename it to ", done.stderr)
        self.assertIn(": Device or resource busy", done.stderr)
        (self.dir / "away").rename(self.dir / "copies")
        self.assertEqual(files(), before)
        return done.stderr.strip().rpartition("yourself: ")[2]

    def test_a_mount_point_stays_and_its_run_is_moved_by_hand(self):
        expected = self.whole()
        out = mount_disk(self.prepare())
        self.stop_resume_and_go_back(out, expected)
        moves, run_id, aside = self.refused(out), id_of(out), self.dir / "out.1"
        self.assertEqual(moves, f"mkdir {aside} && mv {out}/* {aside}/")
        subprocess.run(["sh", "-c", moves], check=True)
        (self.dir / "copies").rename(self.dir / "earlier")
        self.start("--fresh")
        self.assertEqual(self.left(out), expected)
        self.assertIn(f"mkdir {self.dir / 'out.2'} &&", self.refused(out))
        # What was moved is still the run that it was.
        (self.dir / "copies").rename(self.dir / "later")
        (self.dir / "earlier").rename(self.dir / "copies")
        self.assertEqual(saved_state(aside / "checkpoint.pth", self.dir), expected[0][0])
        self.assertIn("having seen", self.start("--set", "/tracker/data_path=out.1", "--set", "/train/epochs=3").stdout)
        self.assertEqual(id_of(aside), run_id)

    def test_a_link_to_a_mount_point_and_a_mount_point_of_the_same_disk(self):
        expected = self.whole()
        out = self.prepare()
        out.symlink_to(mount_disk(self.dir / "disk").name)
        self.stop_resume_and_go_back(out, expected)
        self.assertIn(f"mv {self.dir / 'disk'}/* ", self.refused(self.dir / "disk"))
        out = self.prepare()
        (self.dir / "place").mkdir()
        out.mkdir()
        mount("--bind", self.dir / "place", out)
        self.start()
        self.refused(out)


if __name__ == "__main__":
    if HAS_OWN_MOUNTS and "DALLE2_OWN_MOUNTS" not in os.environ:
        os.environ["DALLE2_OWN_MOUNTS"] = "1"
        os.execvp(OWN_MOUNTS[0], [*OWN_MOUNTS, sys.executable, *sys.argv])
    harness.main()
