# SPDX-License-Identifier: MIT
"""Runs of all kinds, stopped by TERM, KILL and HUP wherever they are (starting, training, validating, saving, drawing,
rolling back), end as runs that were never stopped.

DALLE2_STOPS=200 is the long form: as many stops. DALLE2_STOPS_SEED draws others.
"""
import json
import os
import random
import signal
import subprocess
import time

import harness
import prior_data
from clip_runs import clip_config
from harness import checkpoint_content, ranks_of, run
from vae_runs import VaeRuns

STOPS = int(os.environ.get("DALLE2_STOPS", "0"))
SEED = int(os.environ.get("DALLE2_STOPS_SEED", "1"))
SIGNALS = [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP]
HUGE = 3e38  # finite, so the loader passes it, but no product with it is
MOST_STOPS = 6  # of one run: then it may end
# All that draws, or hangs on the step, more than the loss of the reference does.
OPTIONS = {"min_snr_gamma": 5, "timestep_sampling": {"scheme": "logit_normal"}, "noise_offset": 0.1, "input_perturbation": 0.1,
           "dream": {"enabled": True}, "loss_weighting": "cosmap", "warmup_steps": 20, "cosine_decay_max_steps": 100}
CROP = {"RandomResizedCrop": {"size": [16, 16], "scale": [0.75, 1.0], "ratio": [1.0, 1.0]}, "ToTensor": True}


class RandomStops(VaeRuns):
    def decoder(self, name, shards=None, train=None, **data):
        return self.config(
            f"{name}.json", name, shards, data={"batch_size": 2, "num_workers": 1, "shuffle_train": True, "shuffle_buffer": 5,
                  "preprocessing": CROP, "splits": {"train": 0.6, "val": 0.2, "test": 0.2}, **data},
            train={**OPTIONS, "epochs": 3, "n_sample_images": 2, "save_every_n_samples": 12, "log_every_n_updates": 2, "hang_timeout_seconds": 5, **(train or {})},
            tracker={"keep_last": 1})

    def prior(self, name):
        if not (self.dir / "images").exists():
            prior_data.make_embeddings(self.dir)
        return harness.write_config(self.dir / f"{name}.json", prior_data.prior_config(
            self.dir, name, train={"epochs": 12, "log_every_n_updates": 2, "save_every_seconds": 1}, data={"shuffle_rows": True}))

    def vae(self, name):
        return self.write(name, train={"num_train_steps": 16, "save_results_every": 4, "save_model_every": 4, "discr_start_step": 4})

    def clip(self, name):
        return harness.write_config(self.dir / f"{name}.json", clip_config(
            self.shards, name, train={"epochs": 8, "save_every_n_samples": 32, "log_every_n_updates": 2, "hang_timeout_seconds": 5}))

    def rolled_back(self, name):
        """A decoder whose every epoch has batches that overflow: it goes back until it gives up."""
        shards = self.dir / "poisoned"
        if not shards.exists():
            run("shards", "demo", "--out", shards, "--num", 96, "--image-size", 16, cwd=self.dir, check=0)
            path = sorted((shards / "img_emb").glob("*.npy"))[5]
            shape, values = harness.read_npy(path)
            harness.write_npy(path, shape, [HUGE] * len(values))
        return self.decoder(name, shards, train={"non_finite": {"action": "roll_back", "after": 2, "max_roll_backs": 2}},
                            shuffle_train=False, shuffle_buffer=None)

    def launch(self, config, ranks):
        return harness.start("--config", config, *(["--nproc-per-node", ranks] if ranks > 1 else []), cwd=self.dir)

    def whole_files(self, name):
        """Samples seen by each file of the run that is whole; all of them have to be."""
        if not (self.dir / name).exists():
            return {}
        done = run("fsck", name, "--json", cwd=self.dir)
        if "expected checkpoints" in done.stderr:  # it was stopped before its first save
            return {}
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return {file["file"]: file["samples_seen"] for file in json.loads(done.stdout)["files"]
                if file.get("samples_seen") is not None}

    def stop_at_random(self, config, name, draw, ranks, longest):
        """@return the exit code, or none if the run ended first"""
        before = max(self.whole_files(name).values(), default=0)
        process = self.launch(config, ranks)
        seconds = draw.uniform(0.05, longest)
        try:
            output = process.communicate(timeout=seconds)[0]
            self.history.append(f"ended by itself with {process.returncode}\n{output}")
            return process.returncode, output
        except subprocess.TimeoutExpired:
            pass
        sent = draw.choice(SIGNALS)
        own = ranks_of(process) if ranks > 1 else {}
        victim = draw.choice([process.pid, *own.values()])
        try:
            os.kill(victim, sent)
        except ProcessLookupError:
            pass
        output = process.communicate(timeout=120)[0]
        self.history.append(f"{sent.name} to {victim} after {seconds:.3f} s: ended with {process.returncode}\n{output}")
        expected = {0, 4, 75} if sent != signal.SIGKILL else {0, 4, 6, -signal.SIGKILL}
        self.assertIn(process.returncode, expected | {-sent}, output)  # a signal before the handlers are there
        after = max(self.whole_files(name).values(), default=0)
        self.assertGreaterEqual(after, before, "the newest whole file is lost\n" + output)
        return None, output

    def break_often(self, config, name, draw, longest, ranks, end):
        """Stops a run again and again, then lets it end. @return stops"""
        stops = 0
        self.history = []  # what each start said
        while stops < MOST_STOPS:
            code, output = self.stop_at_random(config, name, draw, ranks, longest)
            if code is not None:
                self.assertEqual(code, end, output)
                return stops
            stops += 1
        done = run("--config", config, *(["--nproc-per-node", str(ranks)] if ranks > 1 else []), cwd=self.dir)
        self.history.append(f"ended with {done.returncode}\n{done.stdout}{done.stderr}")
        self.assertEqual(done.returncode, end, done.stdout + done.stderr)
        return stops

    def unbroken(self, make, ranks, end=0):
        """@return seconds that it took"""
        began = time.monotonic()
        done = run("--config", make("whole"), *(["--nproc-per-node", str(ranks)] if ranks > 1 else []), cwd=self.dir)
        self.assertEqual(done.returncode, end, done.stdout + done.stderr)
        return time.monotonic() - began

    def check_equal(self, make, share, ranks=1, end=0):
        """`share` of all stops fall on this kind of run; each of its ends is that of the run that was never stopped."""
        draw = random.Random(f"{SEED} {make.__name__} {ranks}")
        longest = self.unbroken(make, ranks, end)
        expected = checkpoint_content(self.dir / "whole" / "checkpoint.pth", self.dir)
        wanted, stops, number = max(1, round(STOPS * share)), 0, 0
        while stops < wanted:
            name = f"broken{number}"
            stops += max(1, self.break_often(make(name), name, draw, longest, ranks, end))
            found = checkpoint_content(self.newest_good(name), self.dir)
            self.assertEqual(sorted(found[0]), sorted(expected[0]))
            for key, value in expected[0].items():
                self.assertTrue(found[0][key] == value, f"{key} of {name}, seed {SEED}, is another after\n" + "\n".join(self.history))
            self.assertEqual(found[1]["samples_seen"], expected[1]["samples_seen"], "\n".join(self.history))
            number += 1

    def newest_good(self, name):
        """A run that was stopped amid its last skipped updates has saved there; no snapshot is from then."""
        return max((self.dir / name / "snapshots").glob("epoch*.pth"), key=lambda path: path.name)

    def test_a_decoder(self):
        self.check_equal(self.decoder, share=0.2)

    def test_a_decoder_of_two_ranks(self):
        self.check_equal(self.decoder, ranks=2, share=0.1)

    def test_a_prior(self):
        self.check_equal(self.prior, share=0.15)

    def test_a_vae_with_a_discriminator(self):
        self.check_equal(self.vae, share=0.2)

    def test_a_clip(self):
        self.check_equal(self.clip, share=0.1)

    def test_a_clip_of_two_ranks(self):
        self.check_equal(self.clip, ranks=2, share=0.05)

    def test_a_decoder_that_goes_back_and_gives_up(self):
        self.check_equal(self.rolled_back, share=0.1, end=4)

    def stopped_early(self, config, ranks):
        process = self.launch(config, ranks)
        while len(own := ranks_of(process)) < ranks:
            time.sleep(0.001)
        return process, own

    def test_a_rank_that_is_stopped_before_all_have_met_stops_all(self):
        config = self.decoder("early")
        process, own = self.stopped_early(config, 2)
        os.kill(own[1], signal.SIGTERM)  # most likely before it can answer the signal
        self.end_of(process, 75)
        for late, told in ((0, 1), (1, 0)):
            process, own = self.stopped_early(config, 3)
            os.kill(own[late], signal.SIGSTOP)
            time.sleep(2)  # the others wait for the late one by now
            os.kill(own[told], signal.SIGTERM)
            time.sleep(3)
            os.kill(own[late], signal.SIGCONT)
            output = self.end_of(process, 75)
            self.assertIn("stopped before", output)
        self.assertFalse((self.dir / "early").exists())


if __name__ == "__main__":
    harness.main()
