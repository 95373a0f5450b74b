# SPDX-License-Identifier: MIT
"""The number of threads that compute: chosen from the config and the machine, kept by a run, and told of where other programs use the
cores."""
import os
import signal
import subprocess
import unittest

import harness
from harness import BINARY, EndToEnd, checkpoint_content

UNET = {"dim": 8, "dim_mults": [1, 2], "image_embed_dim": 32, "cond_dim": 8, "num_resnet_blocks": 1, "resnet_groups": 4}
CORES = len(os.sched_getaffinity(0))


class Threads(EndToEnd):
    def write(self, name, epochs, batch_size=1, **train):
        return self.config(f"{name}.json", name, decoder={"unets": [UNET]}, data={"batch_size": batch_size},
                           train={"epochs": epochs, "n_sample_images": 0, **train})

    def run_with(self, threads, *arguments):
        """@param threads of OMP_NUM_THREADS, None to leave it out"""
        env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        if threads:
            env["OMP_NUM_THREADS"] = str(threads)
        done = subprocess.run([BINARY, *map(str, arguments)], cwd=self.dir, env=env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def own_state(self, name):
        return checkpoint_content(self.dir / name / "checkpoint.pth", self.dir)[1]["dalle2_train"]

    @unittest.skipIf(CORES < 2, "one core")
    def test_the_cores_share_a_batch_and_a_resumed_run_gives_the_same_bits(self):
        for name, epochs in (("whole", 2), ("parts", 1), ("parts", 2), ("alone", 2)):
            said = self.run_with(1 if name == "alone" else None, "--config", self.write(name, epochs, batch_size=8))
            self.assertIn("on cpu, 1 thread\n" if name == "alone" else f"on cpu, {CORES} threads\n", said)
        whole, parts, alone = (checkpoint_content(self.dir / name / "checkpoint.pth", self.dir)[0] for name in ("whole", "parts", "alone"))
        self.assertEqual(whole, parts)
        self.assertNotEqual(whole, alone)  # the lanes add up in another order

    def test_processes_of_the_launcher_choose_for_themselves(self):
        self.run_with(None, "--config", self.write("ranks", 1), "--nproc-per-node", 2)
        self.assertEqual(self.own_state("ranks")["threads"], 1)
        self.assertRegex(self.own_state("ranks")["processor"], r"\w.* with \w")

    def test_other_programs_on_the_cores_are_told_of_once(self):
        core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        loops = [subprocess.Popen([*core, "sh", "-c", "while :; do :; done"]) for _ in range(3)]
        process = self.start("--config", self.write("busy", 10**6), before=core, env={"OMP_NUM_THREADS": "2"})
        try:
            line = next(line for line in process.stdout if "waited for a core" in line)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
            process.send_signal(signal.SIGTERM)
            rest = process.communicate()[0]
        self.assertRegex(line, r"waited for a core \d+\.\d times as long as they ran: other programs use the cores")
        self.assertIn("OMP_NUM_THREADS=1 or a smaller data.num_workers may be faster", rest)
        self.assertNotIn("waited for a core", rest)
        self.assertEqual(process.returncode, 75)


if __name__ == "__main__":
    harness.main()
