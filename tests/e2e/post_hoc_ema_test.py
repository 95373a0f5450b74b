# SPDX-License-Identifier: MIT
"""Averages chosen after training: a run saves them, `ema` combines them, `sample` draws with the result."""

import harness
from harness import EndToEnd, run


class PostHocEma(EndToEnd):
    def averaging(self, out, **train):
        return self.config(f"{out}.json", out, train={"epochs": 2, "n_sample_images": 0, **train,
                                                      "post_hoc_ema": {"save_every_n_steps": 4}})

    def test_a_run_saves_averages_and_one_of_any_width_is_made_of_them(self):
        self.train(self.averaging("out"))
        files = sorted(path.name for path in (self.dir / "out/averages").iterdir())
        self.assertEqual(files[:2], ["step00000004.pth", "step00000008.pth"])
        self.assertGreaterEqual(len(files), 4)  # the last step too
        done = run("ema", "--sigma", 0.08, "out/averages", "a.pth", cwd=self.dir, check=0)
        self.assertIn("a.pth: sigma 0.08 at step", done.stdout)
        self.assertIn(f"{2 * len(files)} averages in {len(files)} files", done.stdout)
        # Single files in any order, and an earlier step.
        names = [f"out/averages/{name}" for name in files]
        run("ema", *reversed(names), "b.pth", "--sigma", 0.08, cwd=self.dir, check=0)
        run("ema", *names, "c.pth", "--sigma", 0.08, "--step", 4, cwd=self.dir, check=0)
        for name in ("a", "b", "c"):
            run("sample", "--checkpoint", f"{name}.pth", "--image-embeds", self.shards / "img_emb/img_emb_000000.npy",
                "--out", name, cwd=self.dir, check=0)
        first = [harness.read_npy(self.dir / name / "samples.npy")[1] for name in ("a", "b", "c")]
        self.assertLess(max(abs(x - y) for x, y in zip(first[0], first[1])), 1e-4)
        self.assertGreater(max(abs(x - y) for x, y in zip(first[0], first[2])), 1e-3)

    def test_what_cannot_be_combined_is_told(self):
        self.train(self.averaging("out", epochs=1))
        for arguments, code, text in (
                (("--sigma", 0.1, "out/model.pth", "a.pth"), 3, "no file of averages"),
                (("--sigma", 0.1, "out/averages", "out/averages/step00000004.pth"), 2, "holds averages of the run"),
                (("out/averages", "a.pth"), 2, "--sigma")):
            done = run("ema", *arguments, cwd=self.dir, check=code)
            self.assertIn(text, done.stderr + done.stdout, arguments)
        self.assertFalse((self.dir / "a.pth").exists())
        # Two widths far apart and a wish far outside: said, and made all the same.
        done = run("ema", "--sigma", 0.28, "out/averages/step00000004.pth", "a.pth", cwd=self.dir, check=0)
        self.assertIn("cannot be made from these files", done.stderr)


if __name__ == "__main__":
    harness.main()
