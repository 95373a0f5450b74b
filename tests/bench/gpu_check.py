#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What can be checked on a machine with one GPU, and what it measures there. Needs the program and Python's standard library.

    scripts/gpu_check.sh [--device cuda] [--steps 60] [--large-batch 32] [--keep FOLDER]

Checks: samples of the reference's checkpoints (fp32, TF32 off); a stop and a resume, bit for bit; the way of several processes with one
process (NCCL on a GPU), bit for bit; two processes on the one device over Gloo against one process that takes both batches, with and
without train.shard_optimizer; bf16 and fp16 against fp32. Measures time and memory of a step, of a small and of a large decoder and of a
prior, and of drawing. --device cpu runs the same on a processor, with Gloo in place of NCCL, to try the script itself.

Ends with 0 if all checks hold, with 1 if one does not; a failing check does not keep the others from running.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import harness
import prior_data

SMALL = {"unets": [{"dim": 32, "dim_mults": [1, 2, 4], "image_embed_dim": 32, "cond_dim": 32, "num_resnet_blocks": 1,
                    "num_image_tokens": 2, "num_time_tokens": 1, "self_attn": [False, False, True]}],
         "image_size": 32, "timesteps": 1000, "sample_timesteps": [20], "learned_variance": False}
LARGE = {"unets": [{"dim": 128, "dim_mults": [1, 2, 3, 4], "image_embed_dim": 32, "cond_dim": 512, "num_resnet_blocks": 2,
                    "num_image_tokens": 4, "num_time_tokens": 2, "attn_heads": 8, "attn_dim_head": 64,
                    "self_attn": [False, False, True, True], "memory_efficient": True}],
         "image_size": 64, "timesteps": 1000, "sample_timesteps": [20], "learned_variance": False}
TWO_PROCESSES = 1e-3  # relative, of losses: sums in another order, and atomics on a GPU
MIXED = 0.1           # relative, of the mean loss of the last ten updates


class Checks:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.on_gpu = arguments.device.startswith("cuda")
        self.results = []

    def run(self, name, check):
        begin = time.monotonic()
        try:
            said, holds = check() or "", True
        except Exception as error:  # the next check may say more
            said, holds = f"{type(error).__name__}: {str(error)[-2000:]}", False
        self.results.append((name, holds))
        print(f"{'ok    ' if holds else 'FAILED'} {name} ({time.monotonic() - begin:.0f} s) {said}", flush=True)

    def program(self, *arguments, env=None, check=0, timeout=560):
        return harness.run(*arguments, cwd=self.folder, env={"NVIDIA_TF32_OVERRIDE": "0", **(env or {})}, check=check, timeout=timeout)

    def shards(self, side):
        folder = self.folder / f"shards{side}"
        if not folder.exists():
            self.program("shards", "demo", "--out", folder, "--num", 2000, "--image-size", side)
        return folder

    def decoder(self, name, network=SMALL, batch=16, steps=None, lanes=None, **train):
        steps = steps or self.arguments.steps
        accumulated = train.get("grad_accum_every", 1)
        config = harness.tiny_config(
            self.shards(network["image_size"]), name, decoder=network,
            data={"batch_size": batch, "num_workers": 2, "lanes": lanes, "splits": {"train": 0.8, "val": 0.1, "test": 0.1}},
            train={"device": self.arguments.device, "n_sample_images": 0, "validation_samples": 1, "log_every_n_updates": 1,
                   "epoch_samples": steps * batch * accumulated, "deterministic": True, **train})
        return harness.write_config(self.folder / f"{name}.json", config)

    def rows(self, name):
        return [row for row in harness.records(self.folder / name) if "Unet 0 Training Loss" in row or "tracking/training-l2" in row]

    def losses(self, name):
        return [row["Unet 0 Training Loss"] for row in self.rows(name)]

    def figures(self, name, batch):
        """Median time of a step without the first five, and the memory of the device."""
        rows = self.rows(name)
        rates = [row[key] for row in rows[5:] for key in ("Samples per second", "tracking/samples-sec") if key in row]
        peak = max((row.get("CUDA memory peak MiB", row.get("Memory peak MiB", 0)) for row in harness.records(self.folder / name)), default=0)
        return f"{1e3 * batch / statistics.median(rates):.1f} ms a step, {peak:.0f} MiB {'of the GPU' if self.on_gpu else 'resident'}"

    def state(self, name):
        return harness.checkpoint_content(self.folder / name / "checkpoint.pth", self.folder)[0]

    def same_state(self, one, other):
        expected, found = self.state(one), self.state(other)
        assert len(expected) > 50, f"{len(expected)} tensors"
        different = [name for name in expected if found.get(name) != expected[name]]
        assert not different and len(found) == len(expected), f"{len(different)} of {len(expected)} tensors differ: {different[:3]}"
        return f"{len(expected)} tensors, bit for bit"

    def near(self, one, other, tolerance):
        expected, found = self.losses(one), self.losses(other)
        assert len(expected) == len(found) >= 10, f"{len(expected)} and {len(found)} losses"
        worst = max(abs(a - b) / abs(a) for a, b in zip(expected, found))
        assert worst < tolerance, f"losses differ by {worst:.2g} relative, allowed {tolerance:g}"
        return f"losses within {worst:.1e}"

    # The checks, in their order: later ones compare with runs of earlier ones.

    def reference_samples(self):
        fixtures = ROOT / "tests" / "parity" / "fixtures" / "sampling"
        cases = json.loads((fixtures / "cases.json").read_text())
        assert len(cases) >= 15, f"{len(cases)} cases"
        worst = 0.0
        for case in cases:
            given = [fixtures / a["file"] if isinstance(a, dict) else a for a in case["arguments"]]
            self.program("sample", "--checkpoint", fixtures / case["checkpoint"], "--out", f"sample_{case['name']}", "--device",
                         self.arguments.device, *given)
            _, found = harness.read_npy(self.folder / f"sample_{case['name']}" / "samples.npy")
            _, expected = harness.read_npy(fixtures / case["expected"])
            assert all(map(math.isfinite, found)), case["name"]
            error = max(abs(a - b) for a, b in zip(found, expected)) / case["tolerance"]
            assert error <= 2, f"{case['name']}: {error:.1f} times its tolerance {case['tolerance']}"
            worst = max(worst, error)
        return f"{len(cases)} runs, at most {worst:.2f} of their tolerances"

    def plain(self):
        self.program("--config", self.decoder("plain"))
        assert len(self.losses("plain")) == self.arguments.steps
        return self.figures("plain", 16)

    def resume(self):
        config = self.decoder("stopped")
        process = subprocess.Popen([harness.BINARY, "--config", config], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"})
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            log = self.folder / "stopped" / "log.jsonl"
            if log.exists() and log.read_text().count("Unet 0 Training Loss") >= self.arguments.steps // 3:
                process.send_signal(signal.SIGTERM)
                break
            time.sleep(0.02)
        try:
            output = process.communicate(timeout=120)[0]
        finally:
            process.kill()
        assert process.returncode == 75, f"exit {process.returncode}\n{output}"
        self.program("--config", config)
        return self.same_state("plain", "stopped")

    def one_rank(self):
        group = "nccl" if self.on_gpu else "gloo"
        self.program("--config", self.decoder("one_rank"), env={
            **harness.rank_variables(0, 1, harness.free_port()), "DALLE2_GROUP": group})
        return f"{group}: {self.same_state('plain', 'one_rank')}"

    def two_ranks(self):
        self.program("--config", self.decoder("both", lanes=2, grad_accum_every=2))
        for name, more in (("two", {}), ("two_sharded", {"shard_optimizer": True})):
            config = self.decoder(name, lanes=2, **more)
            settings = json.loads(pathlib.Path(config).read_text())
            settings["train"]["epoch_samples"] *= 2  # of both processes
            harness.write_config(config, settings)
            self.program("--config", config, "--nproc-per-node", 2, env={"DALLE2_GROUP": "gloo"})
        sharded = self.near("two", "two_sharded", TWO_PROCESSES)
        return (f"{self.near('both', 'two', TWO_PROCESSES)}; {self.figures('two', 32)}; with shard_optimizer {sharded}, "
                f"{self.figures('two_sharded', 32)}")

    def mixed(self, precision):
        self.program("--config", self.decoder(precision, mixed_precision=precision))
        mean = lambda name: statistics.mean(self.losses(name)[-10:])
        apart = abs(mean(precision) / mean("plain") - 1)
        assert apart < MIXED, f"the mean of the last ten losses is {apart:.2g} off that of fp32, allowed {MIXED}"
        return f"loss {apart:.1e} off, {self.figures(precision, 16)}"

    def large(self, precision):
        name, batch = f"large_{precision}", self.arguments.large_batch
        self.program("--config", self.decoder(name, LARGE, batch, steps=20, mixed_precision=precision, deterministic=False),
                     env={"NVIDIA_TF32_OVERRIDE": "1" if precision == "no" else "0"})
        assert all(map(math.isfinite, self.losses(name)))
        return self.figures(name, batch)

    def prior(self):
        if not (self.folder / "images").exists():
            prior_data.make_embeddings(self.folder)
        harness.write_config(self.folder / "prior.json", prior_data.prior_config(
            self.folder, "prior", train={"device": self.arguments.device, "epochs": 5, "log_every_n_updates": 1}))
        self.program("--config", "prior.json")
        losses = [row["tracking/training-l2"] for row in self.rows("prior")]
        assert len(losses) >= 20 and all(map(math.isfinite, losses)), losses
        return self.figures("prior", 6)

    def draw(self):
        begin = time.monotonic()
        self.program("sample", "--checkpoint", "plain/checkpoint.pth", "--out", "drawn", "--num", 64, "--batch-size", 64, "--device",
                     self.arguments.device, *self.embeddings())
        drawn = len(list((self.folder / "drawn").glob("*.png")))
        assert drawn >= 64, f"{drawn} pictures"
        return f"64 pictures of 32 pixels, 20 steps of DDIM, in {time.monotonic() - begin:.1f} s with the start of the program"

    def metrics(self):
        networks = ROOT / "tests" / "parity" / "fixtures" / "feature_networks"
        figures = []
        for device in ("cpu", self.arguments.device):
            done = self.program("evaluate", "--config", "plain.json", "--checkpoint", "plain/checkpoint.pth", "--set", f"/train/device={device}",
                                "--set", "/evaluate/n_evaluation_samples=32",
                                "--set", "/evaluate/FID=" + json.dumps({"feature_extractor_weights_path": str(networks / "frozen.pt")}),
                                "--set", "/evaluate/LPIPS=" + json.dumps({"weights_path": str(networks / "lpips.pt")}))
            figures.append(json.loads(done.stdout))
        for name in ("FID", "LPIPS"):
            apart = abs(figures[1][name] / figures[0][name] - 1)
            assert apart < 1e-2, f"{name} is {figures[1][name]}, {figures[0][name]} on a processor"
        return f"FID {figures[1]['FID']:.4g}, LPIPS {figures[1]['LPIPS']:.4g}"

    def embeddings(self):
        shape, values = harness.read_npy(next((self.shards(32) / "img_emb").glob("*.npy")))
        rows = (list(values) * (64 * shape[1] // len(values) + 1))[:64 * shape[1]]
        harness.write_npy(self.folder / "embeds.npy", (64, shape[1]), rows)
        return "--image-embeds", "embeds.npy"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--steps", type=int, default=60, help="updates of each small run")
    parser.add_argument("--large-batch", type=int, default=32, help="samples of the large decoder; 0 leaves it out")
    parser.add_argument("--keep", type=pathlib.Path, help="where the runs go (default: a folder that is removed)")
    arguments = parser.parse_args()
    folder = arguments.keep or pathlib.Path(tempfile.mkdtemp(prefix="dalle2-gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    checks = Checks(arguments, folder.resolve())
    print(time.strftime("%Y-%m-%d"), "device", arguments.device, flush=True)
    if checks.on_gpu:
        subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], check=False)
    print(checks.program("--version").stdout)
    checks.run("samples of the reference's checkpoints", checks.reference_samples)
    checks.run("training", checks.plain)
    checks.run("stop and resume", checks.resume)
    checks.run("one process as a group", checks.one_rank)
    checks.run("two processes on one device", checks.two_ranks)
    for precision in ("bf16", "fp16") if checks.on_gpu else ():  # few processors have instructions for it
        checks.run(f"training in {precision}", lambda: checks.mixed(precision))
    checks.run("a prior", checks.prior)
    checks.run("drawing", checks.draw)
    checks.run("metrics", checks.metrics)
    if arguments.large_batch:
        for precision in ("no", "bf16") if checks.on_gpu else ("no",):
            checks.run(f"large decoder, mixed_precision {precision}", lambda: checks.large(precision))
    if not arguments.keep:
        shutil.rmtree(folder)
    failed = [name for name, holds in checks.results if not holds]
    print(f"{len(checks.results) - len(failed)} of {len(checks.results)} checks hold" + "".join(f"; failed: {name}" for name in failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
