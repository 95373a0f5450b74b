# SPDX-License-Identifier: MIT
"""Four ranks over Gloo, of which one is killed, stopped, cut off or slowed in each phase of a run: starting, training, saving, validating,
evaluating, ending. The others name it and end in time with the right code, no process is left, and the run that goes on ends as one that
was never disturbed.

DALLE2_FAULTS=100 is the long form: as many faults. DALLE2_FAULTS_SEED draws others.
"""
import collections
import itertools
import json
import os
import random
import signal
import sys
import time
import unittest

import harness
from harness import EndToEnd, checkpoint_content, needs_own_network, ranks_of, run, tell_network
from rank_start import Start, processes_of

FAULTS = int(os.environ.get("DALLE2_FAULTS", "0"))
SEED = int(os.environ.get("DALLE2_FAULTS_SEED", "1"))
RANKS = 4
EPOCHS = 8
NETWORKS = harness.ROOT / "tests" / "parity" / "fixtures" / "feature_networks"
# In the order in which a run comes to them, and what the first rank prints when it does; None: it has only just been started.
PHASES = {"start": None, "step": "Starting epoch", "save": "Saving snapshot of epoch", "validation": "Val Step 0",
          "evaluation": "Evaluating epoch", "end": f"Sampling and saving after epoch {EPOCHS - 1}"}
WAYS = ("kill", "stop", "cut", "slow")
HANG_SECONDS = 8
SLOW_SECONDS = 12  # longer than what counts as a hang
SLACK = 25         # for a loaded machine
# From the fault to the end of the last process. A rank that is silent for half the hang timeout is named; the launcher gives the others
# 10 s to say so and 10 s to end.
LIMITS = {"kill": HANG_SECONDS + 20 + SLACK, "stop": HANG_SECONDS + 20 + SLACK, "cut": HANG_SECONDS + 20 + SLACK,
          "slow": SLOW_SECONDS + 20 + SLACK}
MEETING_LIMIT = 300 + SLACK  # until the ranks have met
STOPPED_LIMIT = 60 + 20 + SLACK  # for a stopped rank that nobody waits for
GIVEN_UP = ("has not been heard of", "does not answer", "is gone", "failed (step", "has not come", "has not answered")


def slow_down(victim):
    """A fifth of its speed, for a while."""
    end = time.monotonic() + SLOW_SECONDS
    try:
        while time.monotonic() < end:
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.05)
    except ProcessLookupError:
        pass


class Faults(EndToEnd):
    def write(self, name):
        return self.config(
            f"{name}.json", name, data={"batch_size": 2, "num_workers": 1, "splits": {"train": 0.6, "val": 0.2, "test": 0.2}},
            train={"epochs": EPOCHS, "n_sample_images": 2, "log_every_n_updates": 1, "save_every_n_samples": 16,
                   "hang_timeout_seconds": HANG_SECONDS},
            evaluate={"n_evaluation_samples": 8, "FID": {"feature_extractor_weights_path": str(NETWORKS / "frozen.pt")}})

    def samples_seen(self, name):
        """Of the newest file, after all have been found whole."""
        if not list((self.dir / name).glob("*.pth")):
            return 0
        done = run("fsck", name, "--json", cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return max(file.get("samples_seen") or 0 for file in json.loads(done.stdout)["files"])

    def check_report(self, start, phase, way, victim):
        """Whether those that were left said what happened, and ended with the code for it."""
        codes, said = start.codes(), start.said()
        if way == "slow":
            self.assertIn(codes, ([0], [75]))
            for text in GIVEN_UP:
                self.assertNotIn(text, said)
            return
        if codes in ([0], [0] * RANKS):  # all but the farewell was behind them
            self.assertEqual(phase, "end")
            return
        if start.on_machines:
            expected = {-9 if way == "kill" and rank == victim else 6 for rank in range(RANKS)}
            self.assertLessEqual(set(codes), expected | ({0} if phase == "end" else set()))
        else:
            self.assertEqual(codes, [6])
            self.assertIn(f"rank {victim} was killed by signal 9", said)
        if phase in ("start", "end"):  # the others may not have met it yet, or need it no more
            return
        keeper = [] if victim or not start.on_machines else ["does not answer", "is gone"]
        others = rf"rank {victim} has not been heard of|" + "|".join(["rank 0 waits in", *keeper])
        self.assertRegex(said, rf"rank {victim} has not been heard of" if not keeper else others)
        self.assertIn("start it again once the cause is gone", said)

    def limit_of(self, phase, way):
        if way == "stop" and phase in ("start", "end"):
            return STOPPED_LIMIT
        return MEETING_LIMIT if way == "cut" and phase == "start" else LIMITS[way]

    def disturb(self, config, phase, way, victim, draw):
        """@return seconds from the fault to the end, None if the run ended before the phase"""
        start = Start(config, self.dir, RANKS, way == "cut" or (way == "kill" and phase != "start" and draw.random() < 0.3))
        try:
            if not start.wait_for(PHASES[phase]):
                self.assertIn(start.codes(), ([0], [0] * RANKS), start.output())
                return None
            time.sleep(draw.uniform(0, 1.5 if phase == "start" else 0.1))
            rank = ranks_of(start.process).get(victim)
            if way == "cut":
                tell_network(start.process, f"down {victim}")
            elif rank is not None:
                {"kill": lambda: os.kill(rank, signal.SIGKILL), "stop": lambda: os.kill(rank, signal.SIGSTOP),
                 "slow": lambda: slow_down(rank)}[way]()
            if way == "slow" and start.process.poll() is None:
                start.process.send_signal(signal.SIGTERM)  # it went on in spite of it, and now it may stop
            limit = self.limit_of(phase, way)
            seconds = start.wait(limit)
            self.assertIsNotNone(seconds, f"not ended after {limit} s\n{start.output()}")
            self.check_report(start, phase, way, victim)
            self.assertFalse(processes_of(start.mark), "processes are left")
            return seconds
        except AssertionError as error:
            start.clean_up()
            raise AssertionError(f"rank {victim}, {way} in {phase}: {error}\n{start.output()}") from None
        finally:
            start.clean_up()

    def check_end(self, name, whole):
        done = run("--config", f"{name}.json", "--nproc-per-node", RANKS, cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        expected, found = (checkpoint_content(self.dir / each / "checkpoint.pth", self.dir) for each in (whole, name))
        self.assertGreater(len(expected[0]), 50)
        self.assertEqual(sorted(found[0]), sorted(expected[0]))
        different = [key for key, value in expected[0].items() if found[0][key] != value]
        self.assertFalse(different, f"of {name}")
        self.assertEqual(found[1]["samples_seen"], expected[1]["samples_seen"])
        self.assertFalse(list((self.dir / name).rglob("*.part")))

    def disturb_runs(self, plan, draw):
        """Runs that are disturbed once in each of their phases. @param plan lists of (phase, way, rank), one a run"""
        run("--config", self.write("whole"), "--nproc-per-node", RANKS, cwd=self.dir, check=0)
        taken = collections.defaultdict(list)
        for number, faults in enumerate(plan):
            name = f"run{number}"
            config = self.write(name)
            for phase, way, victim in faults:
                with self.subTest(run=name, phase=phase, way=way, rank=victim):
                    before = self.samples_seen(name)
                    seconds = self.disturb(config, phase, way, victim, draw)
                    self.assertGreaterEqual(self.samples_seen(name), before, "the newest file is lost")
                    if seconds is not None:
                        taken[phase, way].append(seconds)
                        print(f"{time.strftime('%H:%M:%S')} {name}: rank {victim}, {way} in {phase}: {seconds:.1f} s", file=sys.stderr,
                              flush=True)
            with self.subTest(run=name):
                self.check_end(name, "whole")
        return taken

    def test_a_rank_that_is_killed_or_slowed(self):
        draw = random.Random(SEED)
        taken = self.disturb_runs([[("validation", "kill", draw.randrange(RANKS)), ("end", "slow", draw.randrange(RANKS))]], draw)
        self.assertIn(("validation", "kill"), taken)

    @unittest.skipUnless(FAULTS, "the long form")
    @needs_own_network
    def test_every_fault_in_every_phase(self):
        draw = random.Random(SEED)
        plan, faults = [], 0
        for shift in itertools.count():
            # Each run meets all ways, and in four runs each phase meets each.
            ways = [WAYS[(shift + place + shift // len(WAYS)) % len(WAYS)] for place in range(len(PHASES))]
            plan.append([(phase, way, draw.randrange(RANKS)) for phase, way in zip(PHASES, ways)])
            faults += len(PHASES)
            if faults >= FAULTS:
                break
        taken = self.disturb_runs(plan, draw)
        for (phase, way), seconds in sorted(taken.items()):
            print(f"{way:5} in {phase:10}: {len(seconds):3} times, at most {max(seconds):.0f} s", file=sys.stderr)
        self.assertGreater(sum(map(len, taken.values())), 0.9 * FAULTS)


if __name__ == "__main__":
    harness.main()
