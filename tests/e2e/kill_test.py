# SPDX-License-Identifier: MIT
"""A kill, a full disk or a failing one at any moment of a save never leaves a run without a checkpoint that loads.

DALLE2_KILLS=300 is the long form: as many random kills, and every call of a start with saves made to fail in every way.
"""
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import time
import unittest

import harness
import prior_data
import vae_runs
from harness import EndToEnd, run

KILLS = int(os.environ.get("DALLE2_KILLS", "0"))
# Saves after every batch and keeps no pictures: most of the run is spent in saves.
SAVING = {"epochs": 500, "n_sample_images": 0, "save_every_n_samples": 1}
# Three saves in the epoch and one behind it, then the run ends.
SHORT = {**SAVING, "epochs": 2, "epoch_samples": 24}
MODES = {"async": True, "sync": False}
# The call of each kind that belongs to the first checkpoint of a start: run.json (twice, as a copied folder gets an id of
# its own, and the original's auto_resume.json is moved away), auto_resume.json and decoder_config.json come before it.
FIRST_SAVE = ["open:5", "write:5", "fsync:5", "rename:6", "dirsync:7"]
OLDER_COPIES = ["link:1", "rename:7", "unlink:1"]
SAVERS = ["link:3", "rename:10"]  # after model.pth; the best is saved again, which the stop may have cut off
CORES = os.cpu_count() or 1


class Kill(EndToEnd):
    def saving_config(self, name, train, mode):
        return self.config(name, train={**train, "async_save": MODES[mode]}, tracker={"keep_last": 1, "keep_every": 40})

    def check_run(self):
        """Every file is whole, the run can go on. Returns the samples seen of checkpoint.pth."""
        return self.check_runs("out")["out/checkpoint.pth"]

    def check_runs(self, folder):
        """The same of each run below a folder, by their checkpoint.pth."""
        done = run("fsck", folder, "--json", cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stdout)
        checkpoints = [file for file in json.loads(done.stdout)["files"] if file["file"].endswith("/checkpoint.pth")]
        for file in checkpoints:
            self.assertEqual(file["resume"], "exact", file)
        return {file["file"]: file["samples_seen"] for file in checkpoints}

    def kill_at_random_moment(self, config, draw):
        process = self.start("--config", config)
        saved, output = 0, []
        wanted = draw.choice([1, 1, 2, 3])
        for line in process.stdout:
            output.append(line)
            saved += "Saved checkpoint.pth" in line
            # Both sides of a save are hit: the write in the background and what comes after it.
            if saved >= wanted or (saved == wanted - 1 and "Saving snapshot" in line and draw.random() < 0.5):
                break
        self.assertIsNone(process.poll(), "the run ended before it was killed\n" + "".join(output))
        time.sleep(draw.uniform(0, 0.03))
        process.kill()
        output.append(process.communicate(timeout=90)[0])
        self.assertEqual(process.returncode, -signal.SIGKILL, "".join(output))
        self.assertNotIn("frame #", "".join(output))

    def kill_often(self, kills, seed):
        """Starts a run, kills it and starts it again; yields its number and mode behind each kill."""
        draw = random.Random(seed)
        run("--config", self.saving_config("first.json", {**SHORT, "epochs": 1}, "sync"), cwd=self.dir, check=0)
        for kill in range(kills):
            mode = ("async", "sync")[kill % 2]
            self.kill_at_random_moment(self.saving_config(f"{mode}.json", SAVING, mode), draw)
            yield {"kill": kill, "mode": mode}

    def test_kills_at_random_moments_between_and_within_saves(self):
        seen = 0
        for kill in self.kill_often(KILLS or 12, seed=20):
            with self.subTest(**kill):
                now = self.check_run()
                self.assertGreaterEqual(now, seen)  # nothing is trained again
                seen = now
        run("--config", self.saving_config("last.json", {**SAVING, "epochs": 1}, "async"), cwd=self.dir, check=0)
        self.assertFalse(list((self.dir / "out").rglob("*.part")))

    def prepared(self):
        """The folder of a run that has finished an epoch, to start each failing run from, and the configs of that start."""
        run("--config", self.saving_config("first.json", {**SHORT, "epochs": 1}, "sync"), cwd=self.dir, check=0)
        for mode in MODES:
            self.saving_config(f"{mode}.json", SHORT, mode)
        return self.check_run()

    def start_failing(self, spec, how, mode):
        """Lets one call of a start fail, in a folder runs/<how>_<mode>_<spec>. Returns what became of the process."""
        folder = self.dir / "runs" / f"{how}_{mode}_{spec.replace(':', '_')}"
        shutil.copytree(self.dir / "out", folder / "out")
        return run("--config", self.dir / f"{mode}.json", cwd=folder, env={"DALLE2_FAIL_AT": f"{spec}:{how}"})

    def check_ended(self, done, spec, how):
        """A killed process, or one that ended for the disk and says why."""
        self.assertEqual(done.returncode, 137 if how == "abort" else 5, f"{spec} {how}\n{done.stdout}\n{done.stderr}")
        if how != "abort":
            self.assertIn("No space left" if how == "enospc" else "Input/output error", done.stderr)

    def check_failed(self, seen, every=4):
        """No run below runs/ lost a save, every fourth goes on to its end and leaves no part. Returns how many there are."""
        checked = self.check_runs("runs")
        folders = sorted((self.dir / "runs").iterdir())
        self.assertEqual(len(checked), len(folders))
        for name, samples in checked.items():
            self.assertGreaterEqual(samples, seen, name)
        def go_on(folder):
            done = run("--config", self.dir / ("async.json" if "_async_" in folder.name else "sync.json"), cwd=folder,
                       check=0)
            self.assertIn("having seen", done.stdout)
            self.assertFalse(list(folder.rglob("*.part")), folder)
        with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
            list(pool.map(go_on, folders[::every]))
        return len(folders)

    def test_a_failure_at_each_call_of_a_save_keeps_a_checkpoint_and_is_told(self):
        seen = self.prepared()

        def check(case):
            spec, (how, mode) = case
            done = self.start_failing(spec, how, mode)
            said = done.stdout + done.stderr
            if how == "abort" or spec in FIRST_SAVE:  # of the best state, which no later save makes up for
                self.check_ended(done, spec, how)
            else:  # the run goes on without
                self.assertEqual(done.returncode, 0, spec)
                self.assertIn("Error keeping a snapshot" if spec in OLDER_COPIES else "Error saving checkpoint", said)

        ways = (("abort", "async"), ("abort", "sync"), ("enospc", "async"), ("eio", "sync"))
        with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
            list(pool.map(check, itertools.product(FIRST_SAVE + OLDER_COPIES + SAVERS, ways)))
        self.check_failed(seen)

    def kill_before_the_savers(self, config, out):
        """The best of an unbroken start; then one that is killed between its checkpoint and its savers, and one that resumes."""
        run("--quiet", "--config", config, cwd=self.dir, check=0)
        best = {path.name: harness.checkpoint_content(path, self.dir)[0] for path in (self.dir / out).glob("best*.pth")}
        self.assertTrue(best)
        for number in itertools.count(2):  # until the kill comes just there
            shutil.rmtree(self.dir / out)
            done = run("--quiet", "--config", config, cwd=self.dir, env={"DALLE2_FAIL_AT": f"rename:{number}:abort"})
            self.assertEqual(done.returncode, 137, number)
            if (self.dir / out / "checkpoint.pth").exists():
                break
        self.assertFalse(list((self.dir / out).glob("best*.pth")))
        run("--config", config, cwd=self.dir, check=0)
        for name, content in best.items():
            self.assertEqual(harness.checkpoint_content(self.dir / out / name, self.dir)[0], content, name)

    def test_a_kill_between_a_checkpoint_and_the_savers_costs_no_best(self):
        self.kill_before_the_savers(self.saving_config("sync.json", {**SAVING, "epochs": 1, "save_every_n_samples": 10**6}, "sync"), "out")
        prior_data.make_embeddings(self.dir)
        config = prior_data.prior_config(self.dir, "prior", train={"epochs": 1}, data={"eval_every_seconds": 10**6})
        self.kill_before_the_savers(harness.write_config(self.dir / "prior.json", config), "prior")
        pictures = harness.write_white(self.dir / "pictures", 30, 32)
        config = vae_runs.vae_config(pictures, "vae", train={"num_train_steps": 3, "save_results_every": 10, "save_model_every": 10})
        self.kill_before_the_savers(harness.write_config(self.dir / "vae.json", config), "vae")

    @unittest.skipUnless(KILLS, "the long form")
    def test_a_failure_at_every_call_of_a_start_with_four_saves(self):
        seen = self.prepared()
        begin = time.monotonic()

        def fail_all(case):
            """Lets the first call fail, the second and so on, until there are no more."""
            kind, how, mode = case
            for number in itertools.count(1):
                done = self.start_failing(f"{kind}:{number}", how, mode)
                if done.returncode != 0:
                    self.check_ended(done, f"{kind}:{number}", how)
                elif how == "abort" or not re.search("Error|No space left", done.stdout + done.stderr):  # there was no such call
                    self.assertGreater(number, 1 if kind in ("unlink", "mkdir") else 4, case)  # most are one a save at least
                    return

        kinds = ("open", "write", "fsync", "rename", "dirsync", "link", "unlink", "mkdir")
        cases = itertools.product(kinds, ("abort", "enospc", "eio"), MODES)
        with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
            list(pool.map(fail_all, cases))
        failures = self.check_failed(seen)
        print(f"{failures} starts, {time.monotonic() - begin:.0f} s", file=sys.stderr)

    @unittest.skipUnless(KILLS, "the long form")
    def test_a_kill_at_every_call_of_each_kind_of_start_ends_as_an_unbroken_one(self):
        """A resume, --fresh and --back-to: killed at one call, then the same command until it ends."""
        config = json.loads(pathlib.Path(self.saving_config("all.json", SHORT, "sync")).read_text())
        config["tracker"].update(keep_last=20)
        path = harness.write_config(self.dir / "all.json", config)
        run("--config", path, "--set", "/train/epochs=1", cwd=self.dir, check=0)
        snapshot = sorted((self.dir / "out/snapshots").glob("epoch*.pth"))[0].relative_to(self.dir)
        begin, starts = time.monotonic(), 0

        def left_by(folder):
            losses = [{key: value for key, value in record.items() if "oss" in key or key == "step"} for record in harness.records(folder / "out")]
            return ([harness.checkpoint_content(folder / "out" / name, self.dir)[0] for name in ("checkpoint.pth", "best.pth")],
                    [each for each in losses if len(each) > 1])

        for name, more in (("resume", []), ("fresh", ["--fresh"]), ("back", ["--back-to", snapshot])):
            def folder_of(kind):
                folder = self.dir / "runs" / f"{name}_{kind}"
                shutil.copytree(self.dir / "out", folder / "out")
                return folder
            whole = folder_of("whole")
            run("--config", path, *more, cwd=whole, check=0)
            expected = left_by(whole)
            for call in ("rename", "link", "unlink", "fsync", "mkdir"):
                for number in itertools.count(1):
                    folder = folder_of(f"{call}{number}")
                    done = run("--config", path, *more, cwd=folder, env={"DALLE2_FAIL_AT": f"{call}:{number}:abort"})
                    starts += 1
                    if done.returncode == 0:
                        break
                    with self.subTest(start=name, call=call, number=number):
                        self.assertEqual(done.returncode, 137, done.stderr)
                        run("--config", path, *more, cwd=folder, check=0)
                        self.assertTrue(left_by(folder) == expected)
                    shutil.rmtree(folder)
        self.assertGreater(starts, 60)
        print(f"{starts} starts, {time.monotonic() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    harness.main()
