# SPDX-License-Identifier: MIT
"""What the checks of gpu_check.py share: configs, runs, and what they compare of them. Python's standard library only."""
import math
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import clip_runs
import harness
import prior_data
import vae_runs

SMALL = {"unets": [{"dim": 32, "dim_mults": [1, 2, 4], "image_embed_dim": 32, "cond_dim": 32, "num_resnet_blocks": 1,
                    "num_image_tokens": 2, "num_time_tokens": 1, "self_attn": [False, False, True]}],
         "image_size": 32, "timesteps": 1000, "sample_timesteps": [20], "learned_variance": False}
# Not the whole loss of a VAE: it is a difference, and may be near nought.
LOSSES = ("Unet 0 Training Loss", "Unet 1 Training Loss", "Training Loss", "tracking/training-l2", "reconstruction_loss", "perceptual_loss", "discr_loss")
BATCH = 16
NO_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}  # read by the driver's libraries


class NotTried(Exception):
    """This machine cannot do it; the text says why."""


def need(holds, why):
    if not holds:
        raise NotTried(why)


def visible_gpus():
    """@return name, driver and memory of each GPU that processes may use; nothing where nvidia-smi is absent"""
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True,
                            text=True).stdout.splitlines()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed if chosen is None else listed[:len(chosen.split(","))]


class Runs:
    """Runs of the program in one folder."""
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.device, self.steps = arguments.device, arguments.steps
        self.end = time.monotonic() + arguments.seconds
        self.on_gpu = self.device.startswith("cuda")
        self.machine = visible_gpus() if self.on_gpu else []
        self.gpus = max(1, len(self.machine)) if self.on_gpu else 0
        self.gpu_name = self.machine[0].split(",")[0] if self.machine else "unknown"

    def within_time(self, start, seconds):
        """@param start of a process, takes the seconds that it may last: at most those that are left of all"""
        left = self.end - time.monotonic()
        need(left > 1, "no time is left")
        try:
            return start(min(seconds, left))
        except subprocess.TimeoutExpired:
            need(left > seconds, "it was cut off when the time was used up")
            raise

    def program(self, *arguments, env=None, exact=True):
        """@param exact no TF32 in place of float32, whatever the config says"""
        done = self.within_time(lambda seconds: harness.run(
            *arguments, cwd=self.folder, env={**(NO_TF32 if exact else {}), **(env or {})}, check=0, timeout=seconds), 300)
        # A kernel that cannot be compiled, or differs from LibTorch's operations, is left out with a warning.
        assert "the kernels of" not in done.stderr and "cannot be compiled" not in done.stderr, done.stderr
        return done

    def train(self, config, graph=False, exact=True):
        """@param graph whether passes have to run as CUDA graphs"""
        said = self.program("--config", config, exact=exact).stderr
        assert not graph or ("one CUDA graph each from now on" in said and "without a CUDA graph" not in said and "without CUDA graphs" not in said), said

    def other_program(self, command, exact=False):
        """@return what it printed"""
        done = self.within_time(lambda seconds: subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=seconds, env={**os.environ, **(NO_TF32 if exact else {})}), 300)
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}\n{done.stderr}"
        return done.stdout

    def shards(self, side):
        folder = self.folder / f"shards{side}"
        if not folder.exists():
            self.program("shards", "demo", "--out", folder, "--num", 2000, "--image-size", side)
        return folder

    def write(self, name, config):
        harness.write_config(self.folder / f"{name}.json", config)
        return f"{name}.json"

    def decoder(self, name, network=SMALL, batch=BATCH, steps=None, data=None, side=None, tracker=None, **train):
        """@param side of the pictures in the shards, where the network has several sizes"""
        steps, accumulated = steps or self.steps, train.get("grad_accum_every", 1)
        config = harness.tiny_config(
            self.shards(side or network["image_size"]), name, decoder=network,
            data={"batch_size": batch, "num_workers": 2, "splits": {"train": 0.8, "val": 0.1, "test": 0.1}, **(data or {})},
            train={"device": self.device, "n_sample_images": 0, "validation_samples": 1, "log_every_n_updates": 1,
                   "epoch_samples": steps * batch * accumulated, "deterministic": True, **train})
        config["tracker"].update(tracker or {})
        return self.write(name, config)

    def prior(self, name, **train):
        if not (self.folder / "images").exists():
            prior_data.make_embeddings(self.folder)
        return self.write(name, prior_data.prior_config(
            self.folder, name, train={"device": self.device, "epochs": 3, "log_every_n_updates": 1, "deterministic": True, **train}))

    def clip(self, name, steps=None, data=None, **train):
        steps, accumulated = steps or self.steps, train.get("grad_accum_every", 1)
        return self.write(name, clip_runs.clip_config(
            self.shards(clip_runs.SIDE), name, data={"batch_size": BATCH, **(data or {})},
            train={"device": self.device, "epochs": 1, "epoch_samples": steps * BATCH * accumulated, "deterministic": True, **train}))

    def vae(self, name, vae=None, side=32, **train):
        # torch's pooling of VGG16 has no deterministic gradient on a GPU; the network here has none.
        return self.write(name, vae_runs.vae_config(self.shards(side), name, vae, {"image_size": side}, {
            "device": self.device, "log_every_n_updates": 1, "num_train_steps": self.steps, "deterministic": True,
            "save_results_every": 10**6, "save_model_every": 10**6, **train}))

    def rows(self, name):
        return [row for row in harness.records(self.folder / name) if any(key in row for key in LOSSES)]

    def losses(self, name):
        """All losses of all steps, one list a loss."""
        rows = self.rows(name)
        found = {key: [row[key] for row in rows if isinstance(row.get(key), (int, float))] for key in LOSSES}
        found = {key: values for key, values in found.items() if values}
        assert found and all(math.isfinite(value) for values in found.values() for value in values), f"losses of {name}: {found}"
        return found

    def last_losses(self, name):
        """The mean of the last ten of the first loss."""
        return statistics.mean(next(iter(self.losses(name).values()))[-10:])

    def figures(self, name, samples):
        """Median time of a step without the first five, and the memory of the device."""
        rows = self.rows(name)
        rates = [row[key] for row in rows[5:] for key in ("Samples per second", "tracking/samples-sec", "samples_per_second") if key in row]
        peak = max((row.get("CUDA memory peak MiB", row.get("Memory peak MiB", 0)) for row in harness.records(self.folder / name)), default=0)
        return {"ms_a_step": round(1e3 * samples / statistics.median(rates), 2), "peak_mib": round(peak)}

    def near(self, one, other, first, all_steps):
        """@param first allowed difference of the first three steps @param all_steps of any, both relative"""
        expected, found = self.losses(one), self.losses(other)
        assert expected.keys() == found.keys(), f"{sorted(expected)} and {sorted(found)}"
        worst_first = worst = 0.0
        for key, values in expected.items():
            assert len(values) == len(found[key]) >= 3, f"{key}: {len(values)} and {len(found[key])} losses"
            apart = [abs(a - b) / max(abs(a), 1e-3) for a, b in zip(values, found[key])]
            worst_first, worst = max([worst_first, *apart[:3]]), max([worst, *apart])
        assert worst_first <= first and worst <= all_steps, (
            f"losses differ by {worst_first:.2g} in the first steps (allowed {first:g}) and {worst:.2g} in all (allowed {all_steps:g})")
        return {"first_losses_apart": worst_first, "losses_apart": worst}

    def state(self, name):
        return harness.checkpoint_content(self.folder / name / "checkpoint.pth", self.folder)[0]

    def same_state(self, one, other):
        expected, found = self.state(one), self.state(other)
        assert len(expected) > 50, f"{len(expected)} tensors"
        different = [name for name in expected if found.get(name) != expected[name]]
        assert not different and len(found) == len(expected), f"{len(different)} of {len(expected)} tensors differ: {different[:3]}"
        return {"tensors_equal": len(expected)}

    def side_by_side(self, *jobs):
        """Runs functions at once. @throws what the first failing one threw"""
        faults = []

        def attempt(job):
            try:
                job()
            except Exception as error:  # of whatever kind: the caller's thread throws it again
                faults.append(error)

        threads = [threading.Thread(target=attempt, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]

    def stop_and_resume(self, config, name, steps):
        """Stops a run by SIGTERM after so many steps, and lets it end."""
        process = subprocess.Popen([harness.BINARY, "--config", config], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **NO_TF32})
        reader = threading.Thread(target=lambda: lines.extend(process.stdout))
        lines = []
        reader.start()
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            log = self.folder / name / "log.jsonl"
            if log.exists() and len(log.read_text().splitlines()) > steps:
                process.send_signal(signal.SIGTERM)
                break
            time.sleep(0.02)
        reader.join(120)
        if reader.is_alive():
            process.kill()
        process.wait()
        assert process.returncode == 75, f"exit {process.returncode}\n{''.join(lines)}"
        self.program("--config", config)
