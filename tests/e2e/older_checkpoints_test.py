# SPDX-License-Identifier: MIT
"""Runs that an earlier version stopped in the middle of an epoch go on as that version would have: fixtures/before_frame,
made by make_before_frame.py."""
import json
import lzma
import pathlib
import shutil
import tempfile
import unittest

import harness
from harness import checkpoint_content, run
from make_before_frame import KINDS, described_state, machine, make_data, training_records

FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures" / "before_frame"
# A machine of another kind makes sums in another order. Relative to the largest value of a tensor, what was measured with
# LibTorch's kernels for AVX2 and for none: up to 3e-5 of weights, averages and losses, up to 9e-4 of moments.
TOLERANCE = 1e-4
MOMENTS_TOLERANCE = 5e-3
# A moment below this is that of a gradient that is zero but for rounding (of a bias in front of a normalisation).
NO_MOMENT = {"exp_avg": 1e-9, "exp_avg_sq": 1e-17}


def tolerance_of(name, largest):
    """How far a value may be off on a machine of another kind."""
    kind = name.rsplit(".", 1)[-1]
    if kind not in NO_MOMENT:
        return TOLERANCE * largest
    return MOMENTS_TOLERANCE * largest if largest > NO_MOMENT[kind] else 2 * largest


class OlderCheckpoints(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="dalle2-older-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def go_on(self, kind, name, data):
        """Puts the stopped run into a folder of its own and lets it end. @return tensors and the rest of its last
        checkpoint, the folder"""
        folder = self.dir / name
        folder.mkdir()
        self.assertEqual(make_data(kind, folder), data, "the data is no longer what the older run trained on")
        shutil.copytree(FIXTURES / kind / "stopped", folder / "out")
        checkpoint = lzma.decompress((folder / "out/checkpoint.pth.xz").read_bytes())
        (folder / "out/checkpoint.pth.xz").unlink()
        for name in ("checkpoint.pth", "latest.pth"):
            (folder / "out" / name).write_bytes(checkpoint)
        shutil.copy(FIXTURES / kind / "config.json", folder)
        done = run("--config", "config.json", cwd=folder, check=0)
        self.assertRegex(done.stdout, r"Loaded model from out/(latest|checkpoint).pth on epoch 1 having seen \d+ samples")
        return *checkpoint_content("out/checkpoint.pth", folder), folder

    def check(self, kind):
        expected = json.loads((FIXTURES / kind / "expected.json").read_text())
        tensors, tree, folder = self.go_on(kind, "first", expected["data"])
        again, _, _ = self.go_on(kind, "second", expected["data"])
        self.assertEqual([name for name in tensors if tensors[name] != again.get(name)], [])
        self.assertEqual(len(tensors), len(again))
        self.assertEqual(tree["samples_seen"], expected["samples_seen"])

        found = described_state(tensors)
        self.assertGreater(len(found), 100)
        self.assertEqual(set(found), set(expected["tensors"]))
        for name, tensor in expected["tensors"].items():
            if "values" not in tensor:
                self.assertEqual(found[name], tensor, name)
                continue
            worst = max(abs(a - b) for a, b in zip(found[name]["values"], tensor["values"], strict=True))
            self.assertLessEqual(worst, tolerance_of(name, tensor["largest"]), name)

        behind = training_records(folder / "out")[-len(expected["records"]):]
        self.assertGreater(len(behind), 3)
        for record, wanted in zip(behind, expected["records"], strict=True):
            self.assertEqual(set(record), set(wanted))
            for key, value in wanted.items():
                self.assertAlmostEqual(record[key], value, delta=TOLERANCE * abs(value) if "oss" in key or "l2" in key else 0)
        if machine() == expected["machine"]:  # the bits are promised for a kind of machine
            self.assertEqual(found, expected["tensors"])
            self.assertEqual(behind, expected["records"])

    def test_every_kind_of_run_of_then_is_here(self):
        self.assertEqual(sorted(path.name for path in FIXTURES.iterdir()), sorted(KINDS))

    def test_a_decoder_goes_on_as_it_would_have(self):
        self.check("decoder")

    def test_a_prior_goes_on_as_it_would_have(self):
        self.check("prior")


if __name__ == "__main__":
    harness.main()
