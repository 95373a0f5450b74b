# SPDX-License-Identifier: MIT
"""A diffusion prior from its config to a checkpoint: training, validation, stopping and going on."""
import json
import math
import pathlib

import harness
from bad_server import Server
from harness import read_npy, records, run, write_config, write_npy
from prior_data import DIM, ROWS, TEXT, make_embeddings, prior_config


class Prior(harness.Folders):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_embeddings(cls.base)

    def config(self, out="out", **sections):
        return write_config(self.dir / f"{out}.json", prior_config(self.base, out, **sections))

    def tensors(self, path):
        """Every entry of a checkpoint as `inspect` shows it, but for what tells the time."""
        return run("inspect", path, "--json", cwd=self.dir, check=0).stdout

    def test_it_learns_and_leaves_what_the_reference_leaves(self):
        done = self.train(self.config(train={"epochs": 40}))
        losses = self.logged("out", "tracking/training-l2")
        self.assertEqual(len(losses), 40)  # 8 batches an epoch: the first of each
        self.assertLess(losses[-1], 0.7 * losses[0])
        names = {k for r in records(self.dir / "out") for k in r}
        for name in ("tracking/epoch", "tracking/samples-sec", "tracking/samples-seen", "tracking/ema-decay",
                     "metrics/online-validation/l2-loss", "metrics/ema-validation/l2-loss", "metrics/ema-test/l2-loss",
                     "tracking/validation length (minutes)"):
            self.assertIn(name, names)
        for steps in (4, 20):
            for what in ("baseline similarity", "similarity with text", "similarity with original image",
                         "similarity with unrelated caption", "difference from baseline similarity"):
                self.assertIn(f"metrics/ema-validation/{what} [steps={steps}]", names)
        # Validation and test belong to the updates that were made: 40 epochs of 8.
        for key in ("metrics/ema-test/l2-loss", "metrics/ema-validation/l2-loss",
                    "metrics/ema-validation/similarity with text [steps=4]"):
            self.assertEqual([r["step"] for r in records(self.dir / "out") if key in r], [320], key)
        self.assertIn("Number of parameters", done.stdout)
        for name in ("latest.pth", "checkpoint.pth", "model.pth", "best_40.pth", "prior_config.json"):
            self.assertTrue((self.dir / "out" / name).exists(), name)
        entries = json.loads(self.tensors("out/latest.pth"))
        self.assertIn("ema_model", json.dumps(entries))

    def test_saves_of_the_best_do_not_put_off_those_by_the_clock(self):
        tracker = prior_config(self.base, "out")["tracker"]
        tracker["save"]["save_latest_to"] = "out/latest_{samples_seen}.pth"
        tracker["load"]["file_path"] = "out/checkpoint.pth"
        # A validation behind each step, most of them the best so far, for some seconds.
        self.train(self.config(train={"epochs": 80, "lr": 1e-4, "save_every_seconds": 1, "eval_timesteps": [4]},
                               data={"eval_every_seconds": 0}, tracker=tracker))
        self.assertGreater(len(self.logged("out", "metrics/ema-validation/l2-loss")), 400)
        saved = list((self.dir / "out").glob("latest_*.pth"))
        self.assertGreaterEqual(len(saved), 2, "only the save at the end was made")

    def test_a_checkpoint_gives_embeddings_and_similarities(self):
        config = self.config()
        self.train(config)
        folder = self.dir / "drawn"
        texts, encodings = self.base / "texts" / "texts_0.npy", self.dir / "encodings.npy"
        shape, values = read_npy(self.base / "encodings" / "0.npy")
        write_npy(encodings, (25, *shape[1:]), values[:25 * shape[1] * shape[2]])
        sample = ["sample", "--checkpoint", "out/latest.pth", "--text-embeds", texts, "--text-encodings", encodings]
        run(*sample, "--out", folder, cwd=self.dir, check=0)
        shape, drawn = read_npy(folder / "image_embeds.npy")
        self.assertEqual(shape, (25, DIM))
        # A text's draws hang on the seed and its number alone.
        run(*sample, "--out", self.dir / "again", "--batch-size", 3, cwd=self.dir, check=0)
        again = read_npy(self.dir / "again" / "image_embeds.npy")[1]
        for a, b in zip(drawn, again):
            self.assertAlmostEqual(a, b, places=5)
        run(*sample, "--out", self.dir / "other", "--seed", 1, cwd=self.dir, check=0)
        self.assertNotEqual(drawn, read_npy(self.dir / "other" / "image_embeds.npy")[1])
        done = run(*sample, "--out", folder, "--num", 3, cwd=self.dir, check=2)
        self.assertIn("--num on out/latest.pth, a prior's file: needs a decoder as --checkpoint", done.stderr)
        longer = self.dir / "longer.npy"
        most = json.loads(pathlib.Path(config).read_text())["prior"]["net"]["max_text_len"]
        write_npy(longer, (25, most + 1, DIM), [0.5] * (25 * (most + 1) * DIM))
        done = run(*sample[:-1], longer, "--out", self.dir / "longer", cwd=self.dir, check=0)
        self.assertIn(f"/prior/net/max_text_len is {most}, and the text encodings have {most + 1} tokens: the rest is cut", done.stderr)
        done = run("sample", "--checkpoint", "out/latest.pth", "--out", folder, cwd=self.dir, check=2)
        self.assertIn("--text-embeds is missing: a prior draws from text embeddings (.npy, [N, 8])", done.stderr)

        evaluate = ("evaluate", "--config", config, "--checkpoint", "out/latest.pth")
        done = run(*evaluate, cwd=self.dir, check=0)
        for processes in (2, 3):
            self.assertEqual(run(*evaluate, "--nproc-per-node", processes, cwd=self.dir, check=0).stdout, done.stdout)
        metrics = json.loads(done.stdout)
        self.assertEqual(metrics["rows"], 6)
        for steps in (4, 20):
            for what in ("baseline similarity", "similarity with text", "similarity with original image",
                         "similarity with unrelated caption", "difference from baseline similarity"):
                logged = self.logged("out", f"metrics/ema-validation/{what} [steps={steps}]")[-1]
                self.assertAlmostEqual(metrics[f"{what} [steps={steps}]"], logged, places=5)

    def test_rows_of_which_none_is_good_end_the_run(self):
        folder = self.dir / "bad"
        folder.mkdir()
        good = [1.0, *[0.0] * (DIM - 1)]
        write_npy(folder / "0.npy", (ROWS, DIM), [math.nan] * DIM * 48 + good * (ROWS - 48))
        for more in (["--dry-run"], []):
            done = self.train(self.config(data={"image_url": str(folder)}, train={"epochs": 5}), *more, check=3)
            self.assertIn("none of the 48 training rows can be used", done.stderr)
            self.assertLess(done.stderr.count("left out (embedding with NaN or infinity)"), 12)
        self.assertFalse((self.dir / "out").exists())
        # More than a start looks at: the first epoch ends it.
        rows, urls = 84_000, {}
        for key, shape in (("image_url", (rows, DIM)), ("text_url", (rows, DIM)), ("text_encodings_url", (rows, TEXT, DIM))):
            (self.dir / key).mkdir()
            write_npy(self.dir / key / "0.npy", shape, [math.nan] * math.prod(shape))
            urls[key] = str(self.dir / key)
        done = self.train(self.config(out="many", data={**urls, "batch_size": 4096}, train={"epochs": 5}), check=3)
        self.assertIn("none of the 67,200 training rows can be used", done.stderr)
        self.assertEqual(self.logged("many", "Dropped train: embedding with NaN or infinity"), [67_200])
        # A bad row costs itself alone, and has a record in each split.
        write_npy(folder / "0.npy", (ROWS, DIM), [math.nan] * DIM + good * 47 + [math.nan] * DIM + good * 8 + [math.nan] * DIM * 2 + good)
        done = self.train(self.config(out="some", data={"image_url": str(folder)}, train={"epochs": 1}))
        self.assertIn("done: 1 epoch, 47 samples", done.stdout)
        self.assertEqual(self.logged("some", "Dropped val: embedding with NaN or infinity"), [1])
        self.assertEqual(self.logged("some", "Dropped test: embedding with NaN or infinity"), [2])

    def test_an_epoch_whose_rows_lie_elsewhere_by_now_starts_over(self):
        rows = 150_000  # 4.8 MB: more than a block of remote rows
        for name in ("images", "texts"):
            (self.dir / name).mkdir()
            write_npy(self.dir / name / "0.npy", (rows, DIM), [0.1 * i for i in range(10 * DIM)] * (rows // 10))
        prior = {**prior_config(self.base, "")["prior"], "condition_on_text_encodings": False}
        data = {"text_encodings_url": None, "batch_size": 20_000, "shuffle_rows": True, "splits": {"train": 0.9, "val": 0.01, "test": 0.09},
                **{f"{name}_url": str(self.dir / f"{name}s") for name in ("image", "text")}}
        train = {"epochs": 1, "save_every_seconds": 0, "eval_timesteps": [4]}

        def config(out, load, **changed):
            tracker = prior_config(self.base, out)["tracker"]
            tracker["save"]["save_latest_to"] = out + "/{samples_seen}.pth"
            tracker["load"] = {"load_from": "local", "file_path": load} if load else None
            return self.config(out, prior=prior, train=train, data={**data, **changed}, tracker=tracker)

        self.train(config("out", None))
        with Server(self.dir) as server:
            done = self.train(config("web", "out/40000.pth", image_url=f"{server.url}/images/"))
        self.assertIn("the embeddings lie elsewhere than when the checkpoint was made: epoch 0 starts over", done.stderr)
        self.assertIn("done: 1 epoch, 175,000 samples", done.stdout)
        self.assertNotIn("starts over", self.train(config("again", "out/40000.pth")).stderr)


if __name__ == "__main__":
    harness.main()
