# SPDX-License-Identifier: MIT
"""scripts/gpu_check.sh, tried with a processor in the place of the GPU."""
import argparse
import io
import contextlib
import json
import os
import subprocess
import sys

import harness

sys.path.insert(0, str(harness.ROOT / "tests" / "bench"))
import gpu_check
import gpu_speed
from gpu_runs import NotTried, Runs

NSYS = """Processing [long.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.1,1000,150,6,6,5,9,1.0,"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, T1, T2)"
39.9,700,50,14,14,12,19,1.0,sm90_xmma_fprop
"""


class GpuCheck(harness.Folders):
    def check(self, *options, code=0, **env):
        done = subprocess.run([harness.ROOT / "scripts" / "gpu_check.sh", *options], cwd=self.dir, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "DALLE2_TRAIN": harness.BINARY, **env})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_it_checks_what_is_asked_for_and_says_what_it_did_not_try(self):
        self.check("--device", "cpu", "--steps", "8", "--only", "parity.prior", "launches", "graph.decoder", "resume.prior", "--json", "found.json")
        found = json.loads((self.dir / "found.json").read_text())
        rows = {row["name"]: row for row in found["checks"]}
        self.assertEqual({name: row["state"] for name, row in rows.items()},
                         {"parity.prior": "ok", "graph.decoder": "not tried", "launches": "not tried", "resume.prior": "ok"})
        self.assertEqual(rows["launches"]["reason"], "a processor launches none")
        self.assertEqual(rows["graph.decoder"]["reason"], "a processor has no graphs")
        self.assertEqual(rows["parity.prior"]["figures"], {"first_losses_apart": 0, "losses_apart": 0})
        self.assertGreater(rows["resume.prior"]["figures"]["tensors_equal"], 50)
        self.assertIn("LibTorch", found["program"])

    def test_what_a_check_needs_runs_before_it_and_an_unknown_name_is_an_error(self):
        listed = [line.split()[0] for line in self.check("--list", "--only", "group.zero", "metrics").splitlines()]
        self.assertEqual(listed, ["train", "group.two", "group.zero", "metrics", "all"])
        self.assertIn("no check is named parrot", self.check("--only", "parrot", code=2))

    def test_without_a_gpu_it_says_so_and_tries_nothing(self):
        said = self.check("--only", "train", "--json", "found.json", code=2, CUDA_VISIBLE_DEVICES="")
        self.assertIn("no GPU can be used here. --device cpu tries the script", said)
        self.assertRegex(said, r"(?m)^  (this machine has no NVIDIA driver|the NVIDIA driver shows no GPU|this LibTorch is only for the CPU)")
        self.assertFalse((self.dir / "found.json").exists())

    def test_without_the_program_it_says_where_to_get_it(self):
        said = self.check(code=2, DALLE2_TRAIN=str(self.dir / "nowhere"))
        self.assertIn(f"{self.dir}/nowhere is not there: scripts/build.sh --cuda makes it", said)

    def plan(self, *checks, seconds=100):
        with contextlib.redirect_stdout(io.StringIO()):
            return [(row["state"], row.get("reason", "")) for row in gpu_check.run_plan(None, checks, seconds)]

    def test_a_failing_check_keeps_none_but_those_that_need_it(self):
        def fails(_):
            raise AssertionError("they differ")

        def cannot(_):
            raise NotTried("no second GPU")

        made = gpu_check.Check
        self.assertEqual(self.plan(made("a", 1, fails), made("b", 1, lambda _: {}, ("a",)), made("c", 1, lambda _: {}), made("d", 1, cannot)),
                         [("FAILED", "AssertionError: they differ"), ("not tried", "needs a"), ("ok", ""), ("not tried", "no second GPU")])
        self.assertEqual(self.plan(made("a", 90, lambda _: {}), made("b", 101, lambda _: {}), made("c", 10, lambda _: {})),
                         [("ok", ""), ("not tried", "no time: about 101 s; --only b"), ("ok", "")])

    def test_a_process_is_cut_off_when_the_time_is_used_up(self):
        runs = Runs(argparse.Namespace(device="cpu", steps=4, seconds=1.5), self.dir)
        for reason in ("it was cut off when the time was used up", "no time is left"):
            with self.assertRaisesRegex(NotTried, reason):
                runs.other_program(["sleep", "60"])
        with self.assertRaisesRegex(AssertionError, "false ended with 1"):
            Runs(argparse.Namespace(device="cpu", steps=4, seconds=60), self.dir).other_program(["false"])

    def test_losses_that_are_apart_are_found(self):
        runs = Runs(argparse.Namespace(device="cpu", steps=4, seconds=60), self.dir)

        def write(name, losses):
            (self.dir / name).mkdir()
            (self.dir / name / "log.jsonl").write_text("".join(json.dumps({"reconstruction_loss": loss}) + "\n" for loss in losses))

        write("one", [1, 2, 4, 8])
        write("near", [1, 2, 4, 8.04])
        write("far", [1, 2, 4, 8.1])
        write("late", [1, 2.001, 4, 8])
        write("short", [1, 2, 4])
        self.assertAlmostEqual(runs.near("one", "near", 1e-4, 1e-2)["losses_apart"], 0.005)
        for name in ("far", "late", "short"):
            with self.assertRaises(AssertionError, msg=name):
                runs.near("one", name, 1e-4, 1e-2)

    def test_launches_are_counted_in_the_report_of_nsys(self):
        self.assertEqual(gpu_speed.launches_in(NSYS, steps=10), 20)


if __name__ == "__main__":
    harness.main()
