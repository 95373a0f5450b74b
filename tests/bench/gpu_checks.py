# SPDX-License-Identifier: MIT
"""Checks of gpu_check.py with one process: the same losses as on the CPU, resume, half precision, drawing, metrics.

Each takes Runs and returns figures by name; it throws where something does not hold, and NotTried where this machine cannot do it.
"""
import concurrent.futures
import json
import math
import time

from gpu_runs import ROOT, SMALL, harness, need

# Relative. Sums in another order, and the step of Adam divides by the root of tiny moments: what begins as rounding grows.
FIRST, ALL = 1e-4, 5e-3
# A code that is nearly as near as another one may be taken instead.
FIRST_OF_VAE, ALL_OF_VAE = 1e-3, 5e-2
HALF = 0.1  # of the mean loss of the last ten updates
PARITY_STEPS = 12
UNET = {"dim": 16, "dim_mults": [1, 2], "cond_dim": 16, "num_resnet_blocks": 1, "num_image_tokens": 1, "num_time_tokens": 1}
CASCADE = {"unets": [{**UNET, "image_embed_dim": 32}, {**UNET, "memory_efficient": True}], "image_size": None, "image_sizes": [16, 32],
           "timesteps": 100, "sample_timesteps": [4, 4], "learned_variance": [True, False]}
LATENT_VAE = {"dim": 16, "layers": 1, "codebook_size": 64, "use_vgg_and_gan": False}


def reference_samples(runs):
    """Of the reference's checkpoints, with its noise."""
    fixtures = ROOT / "tests" / "parity" / "fixtures" / "sampling"
    cases = json.loads((fixtures / "cases.json").read_text())
    assert len(cases) >= 6, f"{len(cases)} cases"

    def error_of(case):
        given = [fixtures / a["file"] if isinstance(a, dict) else a for a in case["arguments"]]
        runs.program("sample", "--checkpoint", fixtures / case["checkpoint"], "--out", f"sample_{case['name']}", "--device", runs.device, *given)
        _, found = harness.read_npy(runs.folder / f"sample_{case['name']}" / "samples.npy")
        _, expected = harness.read_npy(fixtures / case["expected"])
        assert all(map(math.isfinite, found)), case["name"]
        error = max(abs(a - b) for a, b in zip(found, expected)) / case["tolerance"]
        assert error <= 2, f"{case['name']}: {error:.1f} times its tolerance {case['tolerance']}"
        return error

    with concurrent.futures.ThreadPoolExecutor(4 if runs.on_gpu else 2) as pool:
        errors = list(pool.map(error_of, cases))
    return {"cases": len(cases), "worst_in_tolerances": max(errors)}


def train(runs):
    runs.program("--config", runs.decoder("plain"))
    assert len(runs.losses("plain")["Unet 0 Training Loss"]) == runs.steps
    return {"last_losses": runs.last_losses("plain")}


def beside_cpu(runs, name, make, first, all_steps):
    """The same run on the CPU and on the device, with the same draws."""
    env = {"DALLE2_DRAW_ON_CPU": "1"}

    configs = [make(f"{name}_cpu", device="cpu"), make(f"{name}_device", device=runs.device)]  # with what they share, made once
    runs.side_by_side(*[lambda config=config: runs.program("--config", config, env=env) for config in configs])
    return runs.near(f"{name}_cpu", f"{name}_device", first, all_steps)


def small(**unet):
    return {**SMALL, "unets": [{**SMALL["unets"][0], **unet}]}


# Networks of decoders, and other options of their runs.
DECODERS = {
    "decoder": (SMALL, {}),
    "cascade": (CASCADE, {}),  # both stages, the second on enlarged pictures of the first's size
    "recomputation": (small(checkpoint_during_training=True), {}),
    "fmaps": (small(combine_upsample_fmaps=True), {}),
    "attention": (small(cosine_sim_self_attn=True, cosine_sim_cross_attn=True, sparse_attn=True, self_cond=True), {}),
    "offload": (SMALL, {"ema": {"kind": "diffusers", "offload": True}}),
    "lora": (SMALL, {"lora": {"rank": 2, "alpha": 8}, "tracker": {"load": {"load_from": "local", "file_path": "plain/checkpoint.pth"}}}),
    "latent": ({**SMALL, "unets": [{**UNET, "image_embed_dim": 32}], "vae": [{"checkpoint": "latent_vae/checkpoint.pth"}]}, {})}
VAES = {"vae": None, "lookup_free": {"lookup_free_quantization": True, "codebook_size": 256}}  # whose codes are signs


def parity(kind):
    """The losses beside those of a processor."""
    def check(runs):
        def make(name, device):
            if kind == "prior":
                return runs.prior(name, device=device)
            if kind == "clip":
                return runs.clip(name, PARITY_STEPS, device=device)
            if kind in VAES:
                return runs.vae(name, VAES[kind], num_train_steps=PARITY_STEPS, device=device)
            network, options = DECODERS[kind]
            return runs.decoder(name, network, steps=PARITY_STEPS, side=32, device=device, **options)

        if kind == "latent" and not (runs.folder / "latent_vae" / "checkpoint.pth").exists():
            runs.program("--config", runs.vae("latent_vae", LATENT_VAE, num_train_steps=6, device="cpu"))
        return beside_cpu(runs, kind, make, *((FIRST_OF_VAE, ALL_OF_VAE) if kind in VAES else (FIRST, ALL)))
    return check


def resume(kind):
    """A VAE's with its discriminator and codebook."""
    def check(runs):
        whole, stopped, make = f"{kind}_whole", f"{kind}_stopped", getattr(runs, kind)
        more = {"epochs": 30} if kind == "prior" else {}  # small steps: it must not end before the signal
        if kind == "decoder":
            whole = "plain"
        else:
            runs.program("--config", make(whole, **more))
        runs.stop_and_resume(make(stopped, **more), stopped, 5 if kind == "prior" else runs.steps // 3)
        return runs.same_state(whole, stopped)
    return check


def half(precision, kind):
    def check(runs):
        need(runs.on_gpu or precision == "bf16", "few processors have instructions for it")
        name = f"{kind}_{precision}"
        if kind == "decoder":
            full = "plain"
            config = runs.decoder(name, mixed_precision=precision)
        else:
            make, full = {"vae": runs.vae, "clip": runs.clip}[kind], f"{kind}_float"
            runs.program("--config", make(full))
            config = make(name, mixed_precision=precision)
        runs.program("--config", config)
        apart = abs(runs.last_losses(name) / runs.last_losses(full) - 1)
        assert apart < HALF, f"the mean of the last ten losses is {apart:.2g} off that of float32, allowed {HALF}"
        return {"last_losses_apart": apart}
    return check


def graph(kind):
    """Passes as CUDA graphs: the losses of the same run without, with the same draws."""
    def check(runs):
        need(runs.on_gpu, "a processor has no graphs")
        make = {"decoder": runs.decoder, "prior": runs.prior}[kind]
        for name, on in ((f"{kind}_without", False), (f"{kind}_graph", True)):
            runs.train(make(name, cuda_graph=on), graph=on)
        return runs.near(f"{kind}_without", f"{kind}_graph", FIRST, ALL)
    return check


def draw(runs):
    begin = time.monotonic()
    shape, values = harness.read_npy(next((runs.shards(32) / "img_emb").glob("*.npy")))
    rows = (list(values) * (64 * shape[1] // len(values) + 1))[:64 * shape[1]]
    harness.write_npy(runs.folder / "embeds.npy", (64, shape[1]), rows)
    runs.program("sample", "--checkpoint", "plain/checkpoint.pth", "--out", "drawn", "--batch-size", 64, "--device", runs.device,
                 "--image-embeds", "embeds.npy")
    drawn = len(list((runs.folder / "drawn").glob("*.png")))
    assert drawn == 64, f"{drawn} pictures"
    return {"pictures": drawn, "seconds_with_start": round(time.monotonic() - begin, 1)}


def metrics(runs):
    """Beside those that the CPU computes."""
    networks = ROOT / "tests" / "parity" / "fixtures" / "feature_networks"

    def evaluate(device):
        done = runs.program("evaluate", "--config", "plain.json", "--checkpoint", "plain/checkpoint.pth", "--set", f"/train/device={device}",
                            "--set", "/evaluate/n_evaluation_samples=32",
                            "--set", "/evaluate/FID=" + json.dumps({"feature_extractor_weights_path": str(networks / "frozen.pt")}),
                            "--set", "/evaluate/LPIPS=" + json.dumps({"weights_path": str(networks / "lpips.pt")}))
        return json.loads(done.stdout)

    expected, found = evaluate("cpu"), evaluate(runs.device)
    apart = {name: abs(found[name] / expected[name] - 1) for name in ("FID", "LPIPS")}
    assert max(apart.values()) < 1e-2, f"on the device {found}, on a processor {expected}"
    return {f"{name}_apart": value for name, value in apart.items()}
