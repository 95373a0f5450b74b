# SPDX-License-Identifier: MIT
"""FID, IS, KID, LPIPS, precision and recall: in the loop, alone, over several processes, and what can be wrong with them.

The networks are those of tests/parity/make_feature_networks.py, which answer with products of some pixels.
"""
import json
import pathlib

import harness
from harness import ROOT, EndToEnd, main, records, run, saved_state

NETWORKS = ROOT / "tests" / "parity" / "fixtures" / "feature_networks"
INCEPTION = {"feature_extractor_weights_path": str(NETWORKS / "ours.pt")}
LPIPS = {"weights_path": str(NETWORKS / "lpips.pt")}
ALL = {"n_evaluation_samples": 20, "FID": {"feature": 64, **INCEPTION}, "IS": {"splits": 4}, "KID": {"subset_size": 10, "subsets": 5},
       "LPIPS": LPIPS, "PR": {"feature": 192},
       "FD": {"feature_extractor_weights_path": str(NETWORKS / "encoder.pt"), "image_size": 40}}
NAMES = ["FID", "IS_mean", "IS_std", "KID_mean", "KID_std", "KID_standard_error", "PR_precision", "PR_recall", "FD", "LPIPS"]


class Metrics(EndToEnd):
    demo_pictures = 240

    def write(self, name, evaluate=ALL, train=None, **data):
        return self.config(
            f"{name}.json", name, data={"batch_size": 4, "num_workers": 1, "splits": {"train": 0.6, "val": 0.2, "test": 0.2}, **data},
            train={"epochs": 1, "n_sample_images": 0, "epoch_samples": 16, **(train or {})}, evaluate=evaluate)

    def torn(self):
        """A network whose weights are zeros from the middle on, as a lost page leaves them."""
        content = (NETWORKS / "ours.pt").read_bytes()
        middle = len(content) // 2
        (self.dir / "torn.pt").write_bytes(content[:middle] + bytes(4096) + content[middle + 4096:])
        return self.dir / "torn.pt"

    def logged(self, name):
        return [record for record in records(self.dir / name) if any(metric in record for metric in NAMES)]

    def evaluate(self, name, *arguments, check=0):
        return run("evaluate", "--config", f"{name}.json", "--checkpoint", f"{name}/checkpoint.pth", *arguments, cwd=self.dir, check=check)

    def test_the_loop_logs_them_and_evaluate_prints_the_same(self):
        done = self.train(self.write("run", train={"epochs": 2}))
        logged = self.logged("run")
        self.assertEqual(len(logged), 2)
        for record in logged:
            self.assertEqual([key for key in record if key in NAMES], NAMES)
            self.assertEqual(record["Evaluation Samples"], 20)
            self.assertRegex(record["Evaluation"], r"^resize tf1, Inception weights [0-9a-f]{16}, FID of 64, IS of logits_unbiased, KID of 2048, "
                                                   r"PR of 192, FD weights [0-9a-f]{16} at 40 pixels, resize clean, "
                                                   r"LPIPS alex [0-9a-f]{16}$")
        self.assertNotEqual(logged[0]["FID"], logged[1]["FID"])
        self.assertRegex(done.stdout, r"(?m)^step \d+  FID \S+  IS \S+  KID \S+  P/R \S+ \S+  FD \S+  LPIPS \S+$")
        alone = json.loads(self.evaluate("run").stdout)
        self.assertEqual(alone["images"], 20)
        self.assertEqual({name: alone[name] for name in NAMES}, {name: logged[1][name] for name in NAMES})
        live = json.loads(self.evaluate("run", "--no-ema").stdout)
        self.assertNotEqual(live["FID"], alone["FID"])

    def test_without_a_metric_nothing_is_drawn(self):
        self.assertNotIn("[eval]", self.train(self.write("none", evaluate={})).stdout)
        self.assertEqual(self.logged("none"), [])

    def test_what_is_wrong_with_the_networks_is_told_at_the_start_and_nothing_is_written(self):
        for evaluate, text in [
                ({"FID": {}}, "/evaluate/FID/feature_extractor_weights_path: expected the file of the Inception network, got null"),
                ({"IS": {}}, "/evaluate/IS/feature_extractor_weights_path: expected the file"),
                ({"LPIPS": {}}, "/evaluate/LPIPS/weights_path: expected the file of its network, got null"),
                ({"FID": {"feature_extractor_weights_path": "absent.pt"}},
                 "/evaluate/FID/feature_extractor_weights_path: there is no file absent.pt"),
                ({"FID": {"feature_extractor_weights_path": str(self.torn())}}, "torn.pt: damaged archive: the content of member"),
                ({"FID": INCEPTION, "IS": {"feature_extractor_weights_path": "other.pt"}},
                 "differs from that of another metric: one network serves all"),
                ({"FD": {}}, "/evaluate/FD/feature_extractor_weights_path: expected the file of the network, got null"),
                ({"FID": {**INCEPTION, "antialias": True}, "resize": "tf1"}, "/evaluate/resize: contradicts FID/antialias: give one of them")]:
            with self.subTest(text):
                self.refuse_start(self.write("wrong", evaluate=evaluate), "wrong", 2, text)

    def test_features_of_real_pictures_are_kept_for_later_runs(self):
        shared = self.dir / "kept"
        self.train(self.write("run"))
        (own,) = (self.dir / "run" / "metrics").iterdir()
        self.train(self.write("first", evaluate={**ALL, "cache_path": str(shared)}))
        self.assertFalse((self.dir / "first" / "metrics").exists())
        (kept,) = shared.iterdir()
        self.assertEqual(kept.name, own.name)
        # Where nothing can be written, a run goes on.
        (self.dir / "file").write_text("")
        done = self.train(self.write("nowhere", evaluate={**ALL, "cache_path": str(self.dir / "file" / "x")}))
        self.assertIn("the features of real images are not kept for later runs", " ".join((done.stdout + done.stderr).split()))
        self.assertEqual(len(self.logged("nowhere")), 1)

    def test_a_network_that_fails_in_use_costs_the_figures_and_nothing_else(self):
        few = {"n_evaluation_samples": 20, "FD": {"feature_extractor_weights_path": str(NETWORKS / "few.pt"), "image_size": 16}}
        done = self.train(self.write("run", evaluate=few))
        self.assertIn("[eval] warning: too many pictures at once", " ".join((done.stdout + done.stderr).split()))
        self.assertEqual(self.logged("run"), [])
        self.assertTrue((self.dir / "run" / "checkpoint.pth").exists())

    def test_a_stop_in_an_evaluation_saves_and_the_run_evaluates_anew(self):
        many = {**ALL, "n_evaluation_samples": 48}
        config = self.write("run", evaluate=many, train={"epochs": 1}, batch_size=1)
        settings = json.loads(pathlib.Path(config).read_text())
        settings["decoder"]["sample_timesteps"] = [50]
        harness.write_config(config, settings)
        self.train_until(config, "Evaluating epoch 0")
        self.assertEqual(saved_state(self.dir / "run" / "checkpoint.pth", self.dir)[1]["next_task"], "eval")
        self.assertEqual(self.logged("run"), [])
        done = self.train(config)
        self.assertIn("Evaluating epoch 0", done.stdout)
        self.assertEqual(len(self.logged("run")), 1)
        self.assertNotIn("Starting epoch 0", done.stdout)


if __name__ == "__main__":
    main()
