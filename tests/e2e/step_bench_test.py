# SPDX-License-Identifier: MIT
"""scripts/bench.sh step, tried with a small program in the place of ours and of the reference."""
import argparse
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import harness

sys.path.insert(0, str(harness.ROOT / "tests" / "bench"))
import decoder_steps

# Serves as bench_step does: its arguments are the milliseconds of each turn, the last for all later ones.
PROGRAM = """import json, sys
times = list(map(float, sys.argv[1:]))
print("{}", flush=True)
for turn, _ in enumerate(sys.stdin):
    now = times[min(turn, len(times) - 1)]
    print(json.dumps({"wall_ms": 2 * now, "cpu_ms": now}), flush=True)
print(json.dumps({"operations": 5, "allocations": 3, "peak_mib": 1, "gflop": 0.5}), flush=True)
"""


class StepBench(unittest.TestCase):
    def compared(self, seconds, **times):
        """The figures of programs that take such times a round. @return ratios, controls and what was said"""
        programs, made, said = iter((times["ours"], times["theirs"], times["again"])), decoder_steps.Worker, io.StringIO()
        kind = decoder_steps.Kind("", "", "step", ("a32",), None, "step", "memory")
        arguments = argparse.Namespace(binary="", threads=1, compile=False, before=None)
        with tempfile.TemporaryDirectory(prefix="dalle2-step-bench-") as folder, contextlib.redirect_stdout(said):
            program = pathlib.Path(folder) / "program.py"
            program.write_text(PROGRAM)
            with mock.patch.object(decoder_steps, "run", lambda *_: {"gemm_gflops": 100.0, "conv_gflops": 50.0}), \
                    mock.patch.object(decoder_steps, "Worker", lambda _, threads: made([sys.executable, program, *next(programs)], threads)):
                found, controls = decoder_steps.measure(kind, arguments, "a32", "no", seconds)
            ratios = decoder_steps.report(arguments, "a32", "no", found, controls)
        return ratios, controls, said.getvalue()

    def test_rounds_go_on_until_the_control_has_been_within_5_percent_three_times(self):
        ratios, controls, said = self.compared(60, ours=[130, 120, 100], theirs=[400, 300], again=[100])
        self.assertEqual([round(each, 2) for each in controls], [0.77, 0.83, 1.0, 1.0, 1.0])
        self.assertEqual(ratios["theirs.time"], 3.0)  # the smallest of each
        self.assertIn("reference / ours: processor time 3.00", said)
        self.assertEqual(said.count("control 1.00 after 5 rounds"), 2)  # beside each figure

    def test_a_figure_whose_control_is_off_does_not_count(self):
        ratios, _, said = self.compared(0, ours=[100], theirs=[300], again=[110])
        self.assertEqual(ratios, {})
        self.assertIn("control 1.10 after 1 rounds: NOT WITHIN 5 %, does not count", said)


if __name__ == "__main__":
    harness.main()
