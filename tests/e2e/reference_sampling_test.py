# SPDX-License-Identifier: MIT
"""`sample` from checkpoints that dalle2-pytorch wrote draws what dalle2-pytorch draws.

The checkpoints, the start noise and the reference's samples are those of tests/parity/make_sampling.py; fresh ones, of
more configurations, are taken from $DALLE2_PARITY_DIR/sampling. DDIM at eta 0, so the start noise decides everything.
"""
import json
import math
import os
import pathlib

from harness import ROOT, Folders, main, read_npy, run, write_npy


def fixture_folder():
    fresh = pathlib.Path(os.environ.get("DALLE2_PARITY_DIR", "/nonexistent")) / "sampling"
    return fresh if fresh.is_dir() else ROOT / "tests" / "parity" / "fixtures" / "sampling"


class ReferenceSampling(Folders):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = fixture_folder()
        cls.cases = json.loads((cls.folder / "cases.json").read_text())
        cls.single = next(case for case in cls.cases if cls.is_of_first_stage(case))
        cls.guided = next(case for case in cls.cases if cls.is_of_first_stage(case) and "--cond-scale" in case["arguments"])

    @staticmethod
    def is_of_first_stage(case):
        return case["arguments"].count("--init-noise") == 1 and "--start-unet" not in case["arguments"]

    def sample(self, case, *more):
        arguments = [self.folder / a["file"] if isinstance(a, dict) else a for a in case["arguments"]]
        out = self.dir / case["name"]
        run("sample", "--checkpoint", self.folder / case["checkpoint"], "--out", out, "--overwrite", *arguments, *more,
            cwd=self.dir, check=0)
        return out

    def assert_equals_reference(self, case, out):
        shape, found = read_npy(out / "samples.npy")
        expected_shape, expected = read_npy(self.folder / case["expected"])
        self.assertEqual(shape, expected_shape)
        # max() would let a NaN through.
        self.assertTrue(all(map(math.isfinite, found)))
        error = max(abs(a - b) for a, b in zip(found, expected))
        self.assertLessEqual(error, case["tolerance"], case["name"])

    def test_every_configuration_draws_the_reference_samples(self):
        self.assertGreaterEqual(len({case["checkpoint"] for case in self.cases}), 2)
        self.assertGreaterEqual(len(self.cases), 6)
        for case in self.cases:
            with self.subTest(case["name"]):
                out = self.sample(case)
                self.assert_equals_reference(case, out)
                self.assertEqual(len(list(out.glob("[0-9]*.png"))), read_npy(out / "samples.npy")[0][0])

    def test_inpainting_keeps_the_pixels_under_the_mask(self):
        case = self.single
        (count, channels, height, width), _ = read_npy(self.folder / case["expected"])
        given = [0.5 + 0.4 * math.sin(0.7 * i) for i in range(count * channels * height * width)]
        mask = [float(i % width < width // 2) for i in range(count * channels * height * width)]
        write_npy(self.dir / "given.npy", (count, channels, height, width), given)
        write_npy(self.dir / "mask.npy", (count, channels, height, width), mask)
        out = self.sample(case, "--inpaint-image", self.dir / "given.npy", "--inpaint-mask", self.dir / "mask.npy",
                          "--inpaint-resample-times", 2)
        _, found = read_npy(out / "samples.npy")
        _, free = read_npy(self.folder / case["expected"])
        kept = [abs(f - g) for f, g, m in zip(found, given, mask) if m]
        drawn = [abs(f - g) for f, g, m in zip(found, free, mask) if not m]
        self.assertLess(max(kept), 1e-6)  # to [-1, 1] and back
        self.assertGreater(max(drawn), 1e-2)  # the rest follows what is given

    def test_dpmpp_and_guidance_rescale_draw_from_the_same_checkpoints(self):
        _, ddim = read_npy(self.folder / self.guided["expected"])
        for more in (("--sampler", "dpmpp", "--timesteps", 4), ("--cfg-rescale", 0.7)):
            with self.subTest(more):
                _, found = read_npy(self.sample(self.guided, *more) / "samples.npy")
                self.assertTrue(all(0 <= value <= 1 for value in found))
                self.assertGreater(max(abs(a - b) for a, b in zip(found, ddim)), 1e-3)

    def test_averaged_and_live_weights_draw_different_samples(self):
        for case in self.cases:
            if "--no-ema" in case["arguments"]:
                _, live = read_npy(self.sample(case) / "samples.npy")
                live_case = dict(case, arguments=[a for a in case["arguments"] if a != "--no-ema"])
                _, averaged = read_npy(self.sample(live_case) / "samples.npy")
                self.assertGreater(max(abs(a - b) for a, b in zip(live, averaged)), 10 * case["tolerance"])
                return
        self.fail("no case samples from the live weights")


if __name__ == "__main__":
    main()
