# SPDX-License-Identifier: MIT
"""Several processes that train together: they are one run, none of them leaves the others waiting, and those that were started with another
config, other checkpoints or other data are refused."""
import collections
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import harness
import prior_data
import vae_runs
from harness import (BINARY, OWN_NETWORK, checkpoint_content, needs_own_network, needs_reference, rank_variables, ranks_of,
                     records, run, saved_state, tell_network)

ONE_UNET = {"unets": [{**harness.UNET, "image_embed_dim": 32, "self_cond": True}]}
LOSS_TOLERANCE = 1e-5  # relative, over 50 steps: sums over ranks are rounded in another order than those over batches
WEIGHT_TOLERANCE = 1e-4  # absolute; Adam turns rounding about zero into steps of up to the rate, 1e-3
FASTER_TO_GIVE_UP = {"hang_timeout_seconds": 8}


class Ranks(harness.EndToEnd):
    def write(self, name, decoder=None, lanes=None, train=None, keep_last=0, **data):
        return self.config(
            f"{name}.json", name, decoder=decoder or ONE_UNET,
            data={"batch_size": 2, "num_workers": 1, "shuffle_train": True, "lanes": lanes,
                  "splits": {"train": 0.6, "val": 0.2, "test": 0.2}, **data},
            train={"epochs": 5, "n_sample_images": 0, "log_every_n_updates": 1, **(train or {})},
            tracker={"keep_last": keep_last})

    def write_prior(self, name, train=None, **data):
        if not (self.dir / "images").exists():
            prior_data.make_embeddings(self.dir)
        return harness.write_config(self.dir / f"{name}.json", prior_data.prior_config(
            self.dir, name, train={"epochs": 9, "log_every_n_updates": 1, **(train or {})}, data=data))

    def command(self, config, ranks):
        return ["--config", config, *(["--nproc-per-node", ranks] if ranks > 1 else [])]

    def run_ranks(self, config, ranks, check=0, **kwargs):
        return run(*self.command(config, ranks), cwd=self.dir, check=check, **kwargs)

    def check_weights(self, expected, found, prefix=""):
        weights = [name for name in expected if name.startswith(prefix) and expected[name][0] == "F32"]
        self.assertGreater(len(weights), 20)
        for name in weights:
            a, b = (harness.array.array("f", side[name][1]) for side in (expected, found))
            self.assertLess(max(abs(x - y) for x, y in zip(a, b)), WEIGHT_TOLERANCE, name)

    def check_same(self, one, several, keys, steps):
        for key in keys:
            expected, found = self.logged(one, key), self.logged(several, key)
            self.assertEqual(len(found), len(expected), key)
            if "Training" in key or "training" in key:
                self.assertGreaterEqual(len(expected), steps)
            for step, (a, b) in enumerate(zip(expected, found)):
                self.assertLess(abs(a - b), LOSS_TOLERANCE * abs(a), f"{key}, step {step}: {a} and {b}")
        (expected, where), (found, at) = (checkpoint_content(self.dir / name / "checkpoint.pth", self.dir) for name in (one, several))
        self.assertEqual(sorted(found), sorted(expected))
        self.check_weights(expected, found, "model.")
        for key in ("epoch", "samples_seen"):
            self.assertEqual(at[key], where[key])

    def check_decoder(self, ranks, decoder, keys, **train):
        """One process that takes a batch of each lane in turn makes the same updates."""
        accumulated = train.pop("grad_accum_every", 1)
        one = self.write("one", decoder, lanes=ranks, train={**train, "grad_accum_every": ranks * accumulated})
        several = self.write("several", decoder, lanes=ranks, train={**train, "grad_accum_every": accumulated})
        self.run_ranks(one, 1)
        self.run_ranks(several, ranks)
        self.check_same("one", "several", keys, steps=50)

    def test_ranks_on_the_cpu_do_not_load_the_half_for_gpus(self):
        config = self.config(train={"n_sample_images": 0, "epoch_samples": 8})
        searched = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(self.dir / "ld")}  # what the loader of libraries is asked for
        self.train(config, "--nproc-per-node", 2, env=searched)
        logs = [path.read_text() for path in self.dir.glob("ld.*")]
        self.assertGreaterEqual(len(logs), 3)
        self.assertFalse([log for log in logs if "libcuda.so.1" in log])
        harness.run("--version", cwd=self.dir, check=0, env=searched)  # which has to say whether there is one
        self.assertTrue([path for path in self.dir.glob("ld.*") if "libcuda.so.1" in path.read_text()])

    def test_three_ranks_train_two_unets_as_one_does(self):
        self.check_decoder(3, harness.CASCADE, [f"Unet {unet} {what}" for unet in (0, 1) for what in ("Training Loss", "Validation Loss")]
                           + ["Unet 0 Grad Norm"], epochs=7)

    def test_two_ranks_train_a_masked_decoder_with_accumulation_as_one_does(self):
        self.check_decoder(2, harness.CASCADE, ["Unet 1 Training Loss", "Unet 1 Validation Loss"], epochs=9, grad_accum_every=2,
                           unet_training_mask=[False, True], max_batch_size=1)

    def test_three_ranks_train_a_prior_as_one_does(self):
        one = self.write_prior("one", batch_size=2, train={"grad_accum_every": 3})
        several = self.write_prior("several", batch_size=2)
        self.run_ranks(one, 1)
        self.run_ranks(several, 3)
        self.check_same("one", "several", ["tracking/training-l2", "metrics/ema-validation/l2-loss", "metrics/ema-test/l2-loss"], steps=50)

    def test_ranks_validate_and_save_a_prior_by_the_clock_of_the_first(self):
        name = self.write_prior("timed", train={"epochs": 3, "save_every_seconds": 1}, batch_size=2, eval_every_seconds=0)
        self.run_ranks(name, 2)
        # Behind each of the updates, and at the end.
        self.assertEqual(len(self.logged("timed", "metrics/ema-validation/l2-loss")),
                         len(self.logged("timed", "tracking/training-l2")) + 1)

    def test_a_run_goes_on_with_another_number_of_ranks_and_takes_each_sample_once(self):
        for first, second in ((3, 2), (1, 3)):
            with self.subTest(first=first, second=second):
                name = f"from{first}to{second}"
                config = self.write(name, lanes=3, train={"epochs": 2})
                env = {"DALLE2_TRACE_SAMPLES": str(self.dir / f"trace_{name}")}
                self.stop(config, first, lambda done: done >= 14, name, env)
                self.run_ranks(config, second, env=env)
                seen = collections.Counter()
                for path in self.dir.glob(f"trace_{name}.rank*"):
                    for line in path.read_text().splitlines():
                        entry = json.loads(line)
                        if entry["split"] == "train":
                            seen.update((entry["epoch"], key) for key in entry["keys"])
                self.assertEqual(set(seen.values()), {1})
                by_epoch = collections.Counter(epoch for epoch, _ in seen)
                self.assertEqual(by_epoch[0], by_epoch[1])
                self.assertEqual(sum(by_epoch.values()), saved_state(self.dir / name / "checkpoint.pth", self.dir)[1]["samples_seen"])

    def test_more_ranks_than_the_splits_allow_resume_what_one_began(self):
        # Five shards make no three slices with all splits: a new run refuses them, one that began alone keeps its slice.
        begun = self.write("alone", train={"epochs": 1}, end_shard=4)
        self.run_ranks(begun, 1)
        refused = self.run_ranks(self.write("three", end_shard=4), 3, check=2)
        self.assertIn("no shard is left for the split", refused.stdout + refused.stderr)
        self.run_ranks(self.write("alone", train={"epochs": 2}, end_shard=4), 3)

    def wait_for_steps(self, process, name, reached):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if reached(len(self.logged(name, "Unet 0 Training Loss"))):
                    return
            except (OSError, json.JSONDecodeError):
                pass
            time.sleep(0.01)
        process.kill()
        self.fail(process.communicate()[0])

    def stop(self, config, ranks, reached, name, env=None, rank=None):
        """SIGTERM to the launcher, or to one rank, as soon as so many updates are logged."""
        process = self.start(*self.command(config, ranks), env=env)
        self.wait_for_steps(process, name, reached)
        os.kill(process.pid if rank is None else ranks_of(process)[rank], signal.SIGTERM)
        output = self.end_of(process, 75)
        return output

    def test_a_signal_to_one_rank_saves_on_all_and_the_run_goes_on_bit_for_bit(self):
        whole = self.write("whole", train={"epochs": 4, "grad_accum_every": 2})
        parts = self.write("parts", train={"epochs": 4, "grad_accum_every": 2})
        self.run_ranks(whole, 2)
        for rank, steps in ((1, 3), (0, 8), (None, 13)):
            output = self.stop(parts, 2, lambda done, steps=steps: done >= steps, "parts", rank=rank)
            self.assertEqual(output.count("SIGTERM: saving"), 1, output)  # all do the same, and one says it
        self.run_ranks(parts, 2)
        expected, found = (saved_state(self.dir / name / "checkpoint.pth", self.dir) for name in ("whole", "parts"))
        self.assertGreater(len(expected[0]), 50)
        self.assertEqual(found, expected)

    def fail_by(self, act, texts, inside=()):
        """Does something to the processes of a long run. @return what it printed"""
        config = self.write("failing", train={"epochs": 100000, "save_every_n_samples": 20, **FASTER_TO_GIVE_UP})
        process = self.start(*self.command(config, 2), before=inside, stdin=subprocess.PIPE)
        # The first save, which is written in the background, may end later on a busy machine.
        self.wait_for_steps(process, "failing", lambda done: done >= 12 and (self.dir / "failing" / "checkpoint.pth").exists())
        begin = time.monotonic()
        act(process)
        output = self.end_of(process, 6)
        self.assertLess(time.monotonic() - begin, 60, output)
        for text in texts:
            self.assertIn(text, " ".join(output.split()))
        self.assertEqual(run("fsck", "failing", cwd=self.dir).returncode, 0)
        return output

    def test_a_rank_that_is_stopped_is_named_with_its_place(self):
        self.fail_by(lambda process: os.kill(ranks_of(process)[1], signal.SIGSTOP),
                     ["rank 1 has not been heard of for", "the process is gone or stopped", "rank 0 waits in"])

    @needs_own_network
    def test_a_network_that_is_cut_is_named_and_the_run_goes_on_from_its_checkpoint(self):
        self.fail_by(lambda process: tell_network(process, "down"),
                     [f"[dist] error: rank {rank} waits in" for rank in (0, 1)] +
                     [f"rank {rank} has not been heard of for" for rank in (0, 1)] +
                     ["or the network is down", "start it again once the cause is gone"], inside=OWN_NETWORK)
        before = saved_state(self.dir / "failing" / "checkpoint.pth", self.dir)[1]
        done = run("--config", "failing.json", "--set", f"/train/epochs={before['epoch'] + 1}", "--nproc-per-node", "2",
                   cwd=self.dir, check=0)
        self.assertIn(f"having seen {before['samples_seen']} samples", " ".join(done.stdout.split()))

    @needs_own_network
    def test_a_network_that_is_back_in_time_changes_nothing(self):
        for name in ("calm", "shaken"):
            process = self.start(*self.command(self.write(name, train={"epochs": 4, "hang_timeout_seconds": 60}), 2), before=OWN_NETWORK,
                                 stdin=subprocess.PIPE)
            self.wait_for_steps(process, name, lambda done: done >= 5)
            if name == "shaken":
                tell_network(process, "down")
                time.sleep(3)
                steps = len(self.logged(name, "Unet 0 Training Loss"))
                time.sleep(1)
                self.assertEqual(len(self.logged(name, "Unet 0 Training Loss")), steps)  # it was cut
                tell_network(process, "up")
            self.end_of(process, 0)
        calm, shaken = (saved_state(self.dir / name / "checkpoint.pth", self.dir) for name in ("calm", "shaken"))
        self.assertGreater(len(calm[0]), 50)
        self.assertEqual(shaken, calm)

    def poison(self, config, steps):
        """Gives the config embeddings that overflow in the batches of rank 1 in these steps."""
        copy = self.dir / "huge"
        shutil.copytree(self.shards, copy)
        order = run("shards", "order", "--config", config, "--world", "2", "--print", cwd=self.dir, check=0).stdout.splitlines()
        # All of a batch: one whose condition is dropped does not overflow.
        for key in [key for step in steps for key in json.loads(order[step])["keys"][1]]:
            path = copy / "img_emb" / f"img_emb_{int(key[:-4]):06d}.npy"
            shape, values = harness.read_npy(path)
            row = int(key[-4:])
            values[row * shape[1]:(row + 1) * shape[1]] = harness.array.array("f", [3e38] * shape[1])
            harness.write_npy(path, shape, values)
        content = json.loads(pathlib.Path(config).read_text())
        content["data"]["img_embeddings_url"] = f"{copy}/img_emb"
        harness.write_config(config, content)

    def test_a_batch_of_one_rank_that_is_not_finite_is_skipped_on_all(self):
        config = self.write("skipping", lanes=2, train={"epochs": 1})
        self.poison(config, [4])
        done = self.run_ranks(config, 2)
        self.assertEqual((done.stdout + done.stderr).count("an update was skipped"), 1)  # by all ranks, told by one
        training = [r for r in records(self.dir / "skipping") if "Unet 0 Learning Rate" in r]
        self.assertEqual(training[-1]["Unet 0 Skipped Updates"], 1)
        self.assertEqual(run("fsck", "skipping", cwd=self.dir).returncode, 0)

    def test_all_ranks_go_back_together_when_one_meets_bad_batches(self):
        config = self.write("back", lanes=2, train={
            "epochs": 1, "save_every_n_samples": 4,
            "non_finite": {"action": "roll_back", "after": 3, "max_roll_backs": 1, "lr_factor": 0.5}})
        self.poison(config, [4, 5, 6])
        done = self.run_ranks(config, 2, check=4)
        output = done.stdout + done.stderr
        self.assertEqual(output.count("going back to the last checkpoint, 1 of 1 times, with the learning rates multiplied by 0.5"), 1)
        self.assertIn("the last 3 updates of unet 1 were skipped", output)
        self.assertIn("the run went back 1 time before", output)
        self.assertIn("dalle2-train shards check", output)
        lines = [line for line in records(self.dir / "back") if "Roll Backs" in line]
        self.assertEqual([(line["Roll Backs"], line["Learning Rate Factor"]) for line in lines], [(1, 0.5)])
        self.assertEqual(run("fsck", "back", cwd=self.dir).returncode, 0)
        self.assertEqual(checkpoint_content(self.dir / "back/checkpoint.pth", self.dir)[1]["samples_seen"], 16)

    def check_same_files(self, expected, found, least):
        """All files that hold tensors are the same but for the configs in them."""
        files = sorted(path.relative_to(self.dir / expected) for path in (self.dir / expected).rglob("*.pth"))
        self.assertGreaterEqual(len(files), least)
        for file in files:
            one, other = (saved_state(self.dir / name / file, self.dir) for name in (expected, found))
            self.assertGreater(len(one[0]), 20, file)
            self.assertEqual(other, one, file)

    def test_a_run_with_spread_moments_goes_on_without_and_the_other_way_round(self):
        train = {"epochs": 4, "post_hoc_ema": {"save_every_n_steps": 10}}
        whole, parts = self.write("whole", train=train), self.write("parts", train={**train, "shard_optimizer": True})
        self.run_ranks(whole, 2)
        for sharded, steps in ((True, 3), (False, 9), (True, 15)):
            harness.write_config(parts, {**(content := json.loads(pathlib.Path(parts).read_text())),
                                         "train": {**content["train"], "shard_optimizer": sharded}})
            self.stop(parts, 2, lambda done, steps=steps: done >= steps, "parts")
        self.run_ranks(parts, 2)
        self.check_same_files("whole", "parts", 3)

    def test_unets_whose_data_end_early_on_one_rank_send_in_one_order(self):
        # A rank without samples would send the gradients of the second unet behind the loss of the first, the other before it.
        for name, mebibytes in (("parts", 1), ("whole", 100)):
            train = {"epochs": 2, "bucket_mebibytes": mebibytes, "grad_accum_every": 2, "hang_timeout_seconds": 10}
            self.run_ranks(self.write(name, harness.CASCADE, lanes=3, train=train), 2)
        self.check_same_files("whole", "parts", 2)

    def test_the_batch_script_gives_processes_their_cores_and_queues_again_what_can_go_on(self):
        """With stand-ins for Slurm's commands. scripts/slurm/try_one_node.sh has the real ones."""
        stubs = self.dir / "stubs"
        stubs.mkdir()
        for name, text in (("srun", 'echo "$1 $SRUN_CPUS_PER_TASK"\nshift\nSLURM_PROCID=0 SLURM_NTASKS=1 exec "$@"'),
                           ("scontrol", 'echo "scontrol $*"'), ("program", 'echo "program $*"\nexit "$CODE"')):
            (stubs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (stubs / name).chmod(0o755)
        script = pathlib.Path(__file__).resolve().parents[2] / "scripts/slurm/train.sbatch"
        for code, end, queued in ((0, 0, False), (75, 0, True), (6, 0, True), (137, 0, True), (3, 3, False), (2, 2, False)):
            env = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "SLURM_JOB_ID": str(code), "SLURM_CPUS_PER_TASK": "12",
                   "DALLE2_TRAIN": str(stubs / "program"), "CODE": str(code)}
            done = subprocess.run(["bash", script, "my.json", "--quiet"], cwd=self.dir, env=env, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, end, done.stdout + done.stderr)
            self.assertIn("--kill-on-bad-exit=1 12\nprogram --config my.json --quiet\n", done.stdout)
            self.assertEqual(f"scontrol requeue {code}\n" in done.stdout, queued, done.stdout)

    def test_a_single_process_can_go_the_way_of_several(self):
        shape = {"train": {"epochs": 1, "validation_samples": 4}}
        self.run_ranks(self.write("alone", **shape), 1)
        alone = rank_variables(0, 1, harness.free_port())
        done = run("--config", self.write("group", **shape), cwd=self.dir, check=0, env={**alone, "DALLE2_GROUP": "gloo"})
        self.assertIn("on each of 1 ranks", done.stdout + done.stderr)
        self.check_same_files("alone", "group", 1)
        done = run("--config", "group.json", cwd=self.dir, check=2, env={**alone, "DALLE2_GROUP": "nccl"})
        self.assertIn("DALLE2_GROUP: NCCL carries what is on GPUs", done.stderr)

    def test_a_number_of_processes_that_does_not_fit_is_an_error(self):
        done = run("--nproc-per-node", "2", "fsck", ".", cwd=self.dir, check=2)
        self.assertIn("--nproc-per-node: has no effect before the name of the command `fsck`", done.stderr)
        done = run("--config", self.write("wrong"), "--nproc-per-node", "0", cwd=self.dir, check=2)
        self.assertEqual(done.stderr, "error: --nproc-per-node: Value 0 not in range 1 to 1024\n"
                                      "  `dalle2-train --help` lists the options.\n")

    def stopped_as(self, config, environment, after, code=75):
        """Starts a single rank, and sends it a signal when its log holds the text `after`, or three seconds later if that is empty."""
        with open(self.dir / "log.txt", "w+") as log:
            process = harness.start("--config", config, cwd=self.dir, env=environment, stdout=log)
            deadline = time.monotonic() + (60 if after else 3)
            while time.monotonic() < deadline and (not after or after not in (self.dir / "log.txt").read_text()):
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            begin = time.monotonic()
            process.wait(timeout=60)
            output = (self.dir / "log.txt").read_text()
            self.assertEqual(process.returncode, code, output)
            self.assertLess(time.monotonic() - begin, 10, output)
            self.assertIn(after, output)
        return output

    def test_a_signal_to_all_processes_of_a_run_is_one_request(self):
        config = self.write("told", train={"epochs": 100000})
        process = self.start(*self.command(config, 2))
        self.wait_for_steps(process, "told", lambda done: done >= 4)
        for each in (process.pid, *ranks_of(process).values()):
            os.kill(each, signal.SIGTERM)
        output = self.end_of(process, 75)
        self.assertEqual(output.count("SIGTERM: saving"), 1, output)

    def test_a_lost_launcher_lets_the_ranks_save(self):
        config = self.write("orphans", train={"epochs": 100000})
        process = self.start(*self.command(config, 2))
        self.wait_for_steps(process, "orphans", lambda done: done >= 4)
        ranks = ranks_of(process)
        process.kill()
        output = process.communicate(timeout=60)[0]  # until the last rank has closed it
        self.assertEqual(output.count("SIGTERM: saving"), 1, output)
        self.assertEqual(len(ranks), 2)
        with open(self.dir / "orphans" / "run.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody holds it
        self.assertEqual(run("fsck", "orphans", cwd=self.dir).returncode, 0)

    def test_a_signal_ends_a_wait_for_other_ranks(self):
        config = self.write("waiting", train={"epochs": 1})
        port = harness.free_port()
        for rank in (1, 0):  # the first finds nobody to meet, the other is met by nobody
            for host in ("127.0.0.1", "nowhere.invalid"):
                output = self.stopped_as(config, rank_variables(rank, 2, port, host), after="")
                self.assertNotIn("c10d", output)
        self.assertFalse((self.dir / "waiting").exists())

    def torchrun(self, config, *options):
        torchrun = pathlib.Path(harness.REFERENCE_PYTHON).parent / "torchrun"
        return subprocess.Popen([torchrun, "--standalone", "--no-python", "--nproc-per-node", "2", *options, BINARY, "--config",
                                 config], cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})

    @needs_reference
    def test_torchrun_shows_what_ended_a_rank_by_the_reference(self):
        config = self.write("broken", train={**FASTER_TO_GIVE_UP, "epochs": 1})
        content = json.loads(pathlib.Path(config).read_text())
        content["data"]["img_embeddings_url"] = str(self.dir / "nowhere")
        harness.write_config(config, content)
        output = self.end_of(self.torchrun(config), 1)
        summary = output[output.index("FAILED"):]  # what torchrun itself says at the end, from the file that we write
        self.assertIn("nowhere", summary)
        self.assertRegex(summary, r"exitcode\s*: 3\b")

    @needs_reference
    def test_torchrun_starts_a_run_again_whose_rank_was_killed_by_the_reference(self):
        train = {"epochs": 4, "save_every_n_samples": 8, "hang_timeout_seconds": 2}
        whole, killed = self.write("whole", train=train), self.write("killed", train=train)
        self.run_ranks(whole, 2)
        process = self.torchrun(killed, "--max-restarts", "2")
        self.wait_for_steps(process, "killed", lambda done: done >= 12)
        os.kill(ranks_of(process)[1], signal.SIGKILL)
        output = self.end_of(process, 0)
        self.assertIn("having seen", " ".join(output.split()))  # it went on and did not begin anew
        self.check_same_files("whole", "killed", 2)

    def by_hand(self, config, *options, folders=None):
        """Starts two ranks, each with options and a working directory of its own. @return code and output of each"""
        port = harness.free_port()
        processes = [harness.start("--config", config, *own, cwd=(folders or [self.dir] * 2)[rank], env=rank_variables(rank, 2, port))
                     for rank, own in enumerate(options)]
        outputs = [process.communicate(timeout=60)[0] for process in processes]
        return [(process.returncode, " ".join(output.split())) for process, output in zip(processes, outputs)]

    def test_ranks_with_another_config_or_program_are_refused(self):
        config = self.write("mixed", train={"epochs": 1})
        for option, text in (("/seed=5", "/seed: rank 0 has 0, rank 1 5"),
                             ("/data/batch_size=5", "/data/batch_size: rank 0 has 2, rank 1 5"),
                             ("/train/shard_optimizer=true", "/train/shard_optimizer: rank 0 has false, rank 1 true")):
            for code, output in self.by_hand(config, [], ["--set", option]):
                self.assertEqual(code, 2, output)
                self.assertIn("rank 1 was started with another config than rank 0: " + text, output)
        self.assertEqual([code for code, _ in self.by_hand(config, [], [])], [0, 0])

    def test_ranks_that_would_begin_from_different_files_are_refused(self):
        config = self.write("mixed", train={"epochs": 2}, keep_last=1)
        self.run_ranks(config, 2)
        elsewhere = self.dir / "elsewhere"
        shutil.copytree(self.dir / "mixed", elsewhere / "mixed")
        (elsewhere / "mixed/checkpoint.pth").write_bytes(b"torn")
        before = (self.dir / "mixed/checkpoint.pth").read_bytes()
        for code, output in self.by_hand(config, [], [], folders=[self.dir, elsewhere]):
            self.assertEqual(code, 3, output)
            self.assertRegex(output, "rank 0 starts from mixed/checkpoint.pth, rank 1 from mixed/snapshots/.* All ranks must read the same files")
        self.assertEqual((self.dir / "mixed/checkpoint.pth").read_bytes(), before)

    def test_ranks_that_find_other_data_are_refused(self):
        """Of each kind. The paths of the config are relative, and each rank has a folder of its own."""
        folders = [self.dir / "a", self.dir / "b"]
        for folder in folders:
            folder.mkdir()
            shutil.copytree(self.shards, folder / "shards")
            prior_data.make_embeddings(folder)
            harness.write_white(folder / "pictures", 6, 32)
        sorted((folders[1] / "shards").glob("*.tar"))[0].unlink()
        (folders[1] / "pictures/03.png").rename(folders[1] / "pictures/x.png")
        (folders[1] / "images/other").mkdir()
        table = sorted((folders[1] / "images").glob("*.npy"))[-1]
        table.rename(folders[1] / "images/other" / table.name)
        configs = {
            "shards": harness.tiny_config("shards", "out", data={"end_shard": len(list((folders[0] / "shards").glob("*.tar"))) - 1}),
            "pictures": vae_runs.vae_config("pictures", "out", vae={"use_vgg_and_gan": False}),
            "embeddings": prior_data.prior_config(pathlib.Path("."), "out")}
        for what, config in configs.items():
            with self.subTest(what):
                path = harness.write_config(self.dir / f"{what}.json", config)
                for code, output in self.by_hand(path, [], [], folders=folders):
                    self.assertEqual(code, 3, output)
                    self.assertIn(f"rank 1 finds other {what} than rank 0 All ranks must read the same {what}", output)
                self.assertFalse((folders[0] / "out/log.jsonl").exists())


if __name__ == "__main__":
    harness.main()
