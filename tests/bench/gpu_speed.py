# SPDX-License-Identifier: MIT
"""Measurements of gpu_check.py: time and memory of steps, launches, the share of the GPU's peak, the reference beside it."""
import csv
import os
import shutil
import subprocess
import sys

from gpu_runs import BATCH, ROOT, harness, need

LARGE = {"unets": [{"dim": 128, "dim_mults": [1, 2, 3, 4], "image_embed_dim": 32, "cond_dim": 512, "num_resnet_blocks": 2,
                    "num_image_tokens": 4, "num_time_tokens": 2, "attn_heads": 8, "attn_dim_head": 64,
                    "self_attn": [False, False, True, True], "memory_efficient": True}],
         "image_size": 64, "timesteps": 1000, "sample_timesteps": [20], "learned_variance": False}
# Of a forward pass of LARGE for one sample, a multiplication and an addition being two: torch's FlopCounterMode on the reference's Unet.
# A step is three times that: the backward pass computes gradients of inputs and of weights.
LARGE_FORWARD_FLOPS = 22.09e9
# Dense, without sparsity, of the data sheets: H100 and H200 SXM, A100.
PEAK_TFLOPS = {"H200": {"bf16": 989, "tf32": 494, "no": 67}, "H100": {"bf16": 989, "tf32": 494, "no": 67},
               "A100": {"bf16": 312, "tf32": 156, "no": 19.5}}
LARGE_STEPS = 30
# What each is for the program, and for the reference's round.
PRECISIONS = {"no": {}, "tf32": {"tf32": "all"}, "bf16": {"mixed_precision": "bf16"}}


def need_graphs(runs):
    need(runs.on_gpu, "a processor has no graphs")


def small(graph):
    """Bound by launches: without what train.deterministic costs."""
    def check(runs):
        if graph:
            need_graphs(runs)
        name = "small_graph" if graph else "small"
        runs.train(runs.decoder(name, deterministic=False, cuda_graph=graph), graph=graph, exact=False)
        found = runs.figures(name, BATCH)
        if graph:
            found["without_over_with"] = round(runs.figures("small", BATCH)["ms_a_step"] / found["ms_a_step"], 3)
        return found
    return check


def large(precision, graph=False):
    def check(runs):
        need(runs.arguments.large_batch, "--large-batch 0")
        need(runs.on_gpu or precision == "no", "takes minutes on a processor")
        if graph:
            need_graphs(runs)
        name, batch = f"large_{precision}{'_graph' if graph else ''}", runs.arguments.large_batch
        config = runs.decoder(name, LARGE, batch, steps=LARGE_STEPS if runs.on_gpu else 7, deterministic=False, cuda_graph=graph,
                              **PRECISIONS[precision])
        runs.train(config, graph=graph, exact=precision == "no")
        runs.losses(name)  # finite
        found = runs.figures(name, batch)
        peak = next((peaks[precision] for gpu, peaks in PEAK_TFLOPS.items() if runs.on_gpu and gpu in runs.gpu_name), None)
        if peak:
            found["mfu"] = round(3 * LARGE_FORWARD_FLOPS * batch / (found["ms_a_step"] * 1e-3) / (peak * 1e12), 4)
        return found
    return check


def launches_in(report, steps):
    """@param report of nsys, cuda_gpu_kern_sum as CSV @return kernels a step"""
    rows = list(csv.DictReader(report.splitlines()[next(i for i, line in enumerate(report.splitlines()) if "Instances" in line):]))
    return sum(int(row["Instances"]) for row in rows) / steps


def launches(runs):
    """Kernels a step, the difference of a long and a short run: starting and saving launch some, too."""
    need(runs.on_gpu, "a processor launches none")
    need(shutil.which("nsys"), "nsys (Nsight Systems) is not installed")
    found = {}
    for name, steps in (("short", 5), ("long", 25)):
        config = runs.decoder(f"launches_{name}", steps=steps, deterministic=False)
        runs.other_program(["nsys", "profile", "--trace=cuda", "--sample=none", "--force-overwrite=true", "--output", name, harness.BINARY,
                            "--config", config])
        report = runs.other_program(["nsys", "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv", f"{name}.nsys-rep"])
        found[name] = launches_in(report, steps=1)
    return {"kernels_a_step": round((found["long"] - found["short"]) / 20)}


def reference_python():
    for python in (os.environ.get("DALLE2_REFERENCE_PYTHON"), sys.executable):
        if python and subprocess.run([python, "-c", "import dalle2_pytorch, torch"], capture_output=True).returncode == 0:
            return python
    return None


def reference(precision, compiled, name="large"):
    """The step of dalle2-pytorch for the large or the small decoder, on tensors in memory, on the same device."""
    def check(runs):
        batch = runs.arguments.large_batch if name == "large" else BATCH
        need(batch, "--large-batch 0")
        need(runs.on_gpu or (precision == "no" and not compiled), "takes minutes on a processor")
        python = reference_python()
        need(python, "no Python that imports dalle2_pytorch: DALLE2_REFERENCE_PYTHON names one")
        run = f"large_{precision}" if name == "large" else name
        need((runs.folder / run / "log.jsonl").exists(), f"needs {run}")
        printed = runs.other_program(
            [python, ROOT / "tests" / "bench" / "decoder_step.py", "--one-reference-round", "--config", f"{run}.json", "--steps",
             str(LARGE_STEPS if runs.on_gpu else 7), "--device", runs.device, "--precision", precision, *(["--compile"] if compiled else [])],
            exact=precision == "no")
        theirs = 1e3 * float(printed.split()[-1])
        found = {"ms_a_step": round(theirs, 2), "reference_over_ours": round(theirs / runs.figures(run, batch)["ms_a_step"], 3)}
        if (runs.folder / f"{run}_graph" / "log.jsonl").exists():
            found["reference_over_ours_with_graph"] = round(theirs / runs.figures(f"{run}_graph", batch)["ms_a_step"], 3)
        return found
    return check
