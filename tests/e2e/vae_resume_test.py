# SPDX-License-Identifier: MIT
"""Runs of a VAE that are stopped and go on, begin anew, or begin from the weights of a file; whose results are whose."""
import json
import os
import pathlib

import harness
from harness import checkpoint_content, main, records, run
from vae_runs import VaeRuns

CODEBOOK = {"lookup_free_quantization": False, "vq_codebook_dim": 8}


class VaeResume(VaeRuns):
    def test_two_processes_log_the_same_after_a_stop(self):
        settings = {"num_train_steps": 16, "log_every_n_updates": 4, "save_results_every": 1000, "save_model_every": 1000}
        config = self.write("whole", vae=CODEBOOK, train=settings)
        run("--config", config, "--nproc-per-node", 2, cwd=self.dir, check=0)
        config = self.write("cut", vae=CODEBOOK, train=settings)
        self.stop_after(config, 2, "--nproc-per-node", "2")
        run("--config", config, "--nproc-per-node", 2, cwd=self.dir, check=0)
        self.same("whole", "cut")
        self.same_log("whole", "cut")

    def test_a_stop_is_heard_while_no_picture_can_be_read(self):
        folder = self.dir / "unreadable"
        folder.mkdir()
        (folder / "0.png").write_bytes(b"no picture")
        for number in range(1, 60000):
            os.link(folder / "0.png", folder / f"{number}.png")
        config = self.write("run", data={"folder": str(folder), "batch_size": 1})
        process = self.start(config)
        for line in process.stdout:
            if ".png" in line:
                process.terminate()
                break
        output = process.communicate(timeout=120)[0]
        self.assertEqual(process.returncode, 75, output)
        own = checkpoint_content(self.dir / "run/checkpoint.pth", self.dir)[1]["dalle2_train"]
        self.assertLess(own["loader_position"]["row"], 57000)

    def test_a_result_that_cannot_be_written_is_an_error_in_the_log_and_the_run_goes_on(self):
        results = self.dir / "results"
        self.train(self.write("run", train={"results_folder": str(results), "num_train_steps": 2}))
        for name in ("5.png.part", "vae.5.pt.part"):  # a folder where the file is to be written first
            (results / name / "taken").mkdir(parents=True)
        done = self.train(self.write("run", train={"results_folder": str(results)}))
        errors = [record["error"] for record in records(self.dir / "run") if "error" in record]
        self.assertEqual(len(errors), 2, errors)
        self.assertIn(f"Error storing {results}/vae.5.pt: ", errors[0])
        self.assertIn(f"Error storing {results}/5.png: ", errors[1])
        self.assertIn("[train] done: ", done.stdout)
        self.assertTrue((results / "10.png").exists())
        self.assertFalse((results / "5.png").exists())
        self.assertEqual(checkpoint_content(self.dir / "run/checkpoint.pth", self.dir)[1]["step"], 12)

    def test_a_folder_of_results_elsewhere_is_of_one_run(self):
        settings = {"num_train_steps": 1, "results_folder": str(self.dir / "mine")}
        (self.dir / "mine").mkdir()
        (self.dir / "mine/0.png").write_text("a picture of somebody")
        refused = self.train(self.write("run", train=settings), check=2)
        self.assertRegex(refused.stderr, r"/train/results_folder: \S+/mine is not empty, and no run has begun there")
        (self.dir / "mine/0.png").unlink()
        self.train(self.write("run", train=settings))
        self.train(self.write("run", train={**settings, "num_train_steps": 2}))  # its own
        before = {path.name: path.read_bytes() for path in (self.dir / "mine").iterdir()}
        self.assertLessEqual({"run.json", "0.png", "vae.1.pt"}, set(before))
        refused = self.train(self.write("other", train=settings), check=2)
        self.assertRegex(refused.stderr, r"mine belongs to another run \(\S+/run\)")
        self.assertEqual({path.name: path.read_bytes() for path in (self.dir / "mine").iterdir()}, before)

    def test_the_files_of_weights_that_muse_writes_begin_a_run(self):
        self.train(self.write("run", train={"num_train_steps": 6}))
        for number, (name, wanted) in enumerate((("vae.5.pt", ""), ("vae.5.ema.pt", "ema_model."))):
            config = json.loads(pathlib.Path(self.write(f"from{number}", train={"num_train_steps": 1, "lr": 1e-9})).read_text())
            config["tracker"]["load"] = {"load_from": "local", "file_path": f"run/results/{name}"}
            config = harness.write_config(self.dir / f"from{number}.json", config)
            self.assertIn(f"would load: run/results/{name}", self.train(config, "--dry-run").stdout)
            done = self.train(config)
            self.assertIn(f"Starting from zero: with the weights of run/results/{name}", " ".join(done.stdout.split()))
            given = checkpoint_content(self.dir / "run/results" / name, self.dir)[0]
            got = checkpoint_content(self.dir / f"from{number}/checkpoint.pth", self.dir)
            self.assertEqual(got[1]["step"], 1)
            weight = "enc_dec.encoders.0.weight"
            values = [memoryview(tensor[1]).cast("f") for tensor in (given[wanted + weight], got[0]["model." + weight])]
            self.assertLess(max(abs(one - other) for one, other in zip(*values)), 1e-7)


if __name__ == "__main__":
    main()
