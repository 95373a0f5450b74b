# SPDX-License-Identifier: MIT
"""Units of the diffusion layer: schedules, losses and blurs of dalle2_pytorch; zero terminal SNR, guidance rescale
and DPM-Solver++(2M) of diffusers.

    python make_diffusion.py --out fixtures [--seed 0]      writes fixtures/diffusion/*.safetensors
"""
import os
import warnings

os.environ["TQDM_DISABLE"] = "1"
warnings.filterwarnings("ignore")

import torch
from diffusers import DPMSolverMultistepScheduler
from diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion import rescale_noise_cfg
from diffusers.schedulers.scheduling_ddim import rescale_zero_terminal_snr

import dalle2_pytorch.dalle2_pytorch as reference

from case_files import folder_and_options, write_case
from waves import fill, wave

KINDS = ("cosine", "linear", "quadratic", "jsd", "sigmoid")


def schedules(folder):
    """All buffers; of 1000 steps every 37th and the last."""
    tensors = {}
    for kind in KINDS:
        for timesteps in (5, 25, 1000):
            if timesteps == 5 and kind not in ("cosine", "jsd"):
                continue
            scheduler = reference.NoiseScheduler(beta_schedule=kind, timesteps=timesteps, loss_type="l2",
                                                 p2_loss_weight_gamma=0.5, p2_loss_weight_k=2)
            picked = torch.tensor(sorted({*range(0, timesteps, 37 if timesteps > 25 else 1), timesteps - 1}))
            tensors[f"{kind}.{timesteps}.index"] = picked
            for name, value in scheduler.named_buffers():
                tensors[f"{kind}.{timesteps}.{name}"] = value[picked]
    betas = reference.linear_beta_schedule(50)
    tensors["zero_terminal_snr.betas"] = rescale_zero_terminal_snr(betas)
    write_case(folder, "schedules", tensors, {"order": [n for n, _ in scheduler.named_buffers()]})


def formulas(folder, generator):
    randn = lambda *shape: torch.randn(*shape, generator=generator)
    x, mean, scale = randn(2, 3, 5, 5).clamp(-1, 1), randn(2, 3, 5, 5) * 0.5, randn(2, 3, 5, 5) - 2
    out = {"x": x, "mean": mean, "log_scale": scale, "mean2": randn(2, 3, 5, 5)}
    out["likelihood"] = reference.discretized_gaussian_log_likelihood(x, means=mean, log_scales=scale)
    out["kl"] = reference.normal_kl(mean, scale, out["mean2"], scale * 0.5)
    for name, loss in (("l1", torch.nn.functional.l1_loss), ("l2", torch.nn.functional.mse_loss),
                       ("huber", torch.nn.functional.smooth_l1_loss)):
        out[f"loss.{name}"] = loss(3 * x, mean, reduction="none").mean(dim=(1, 2, 3))
    out["blur.image"] = image = torch.rand(2, 3, 9, 11, generator=generator)
    for kernel, sigma in ((3, 0.6), (5, 1.3), (7, 0.9)):
        out[f"blur.{kernel}"] = reference.gaussian_blur2d(image, (kernel, kernel), (sigma, sigma))
    out["guided"] = randn(2, 3, 5, 5) * 3
    out["rescaled"] = rescale_noise_cfg(out["guided"], mean, guidance_rescale=0.7)
    out["wide"] = randn(2, 3, 5, 5) * 2
    s = torch.quantile(out["wide"].flatten(1).abs(), 0.9, dim=-1).clamp(min=1.0).view(-1, 1, 1, 1)
    out["dynamic_threshold"] = out["wide"].clamp(-s, s) / s
    write_case(folder, "formulas", out, {"blur_sigma": {"3": 0.6, "5": 1.3, "7": 0.9}})


def dpm_solver(folder):
    """diffusers' scheduler walks with the reference's network; x_start is clipped as in the other samplers."""
    out, cases = {}, []
    for objective, timesteps, steps, zero_snr in (("eps", 30, 8, False), ("v", 30, 20, False), ("x_start", 50, 5, False),
                                                  ("v", 40, 12, True)):
        unet = reference.Unet(dim=8, dim_mults=(1, 2), attn_dim_head=4, attn_heads=2, resnet_groups=4, channels=3)
        fill(unet)
        schedule = reference.NoiseScheduler(beta_schedule="cosine", timesteps=timesteps, loss_type="l2")
        betas = reference.cosine_beta_schedule(timesteps)
        if zero_snr:
            betas = rescale_zero_terminal_snr(betas)
        acp = torch.cumprod(1 - betas, 0)
        solver = DPMSolverMultistepScheduler(num_train_timesteps=timesteps, trained_betas=betas.numpy(),
                                             prediction_type="sample")
        if zero_snr:
            # diffusers puts 2^-24 where acp is 0; the last step it can take is the same to six digits.
            solver = DPMSolverMultistepScheduler(num_train_timesteps=timesteps, trained_betas=betas.numpy(),
                                                 prediction_type="sample", rescale_betas_zero_snr=True)
        solver.set_timesteps(steps)
        x = wave((2, 3, 16, 16), 0.83, 0.5, 1.2)
        name = f"{objective}.{timesteps}.{steps}"
        for t in solver.timesteps:
            with torch.no_grad():
                said = unet(x, torch.full((2,), int(t)), image_embed=None)
            alpha, sigma = acp[t].sqrt().float(), (1 - acp[t]).sqrt().float()
            x_start = {"eps": lambda: (x - sigma * said) / alpha, "v": lambda: alpha * x - sigma * said,
                       "x_start": lambda: said}[objective]().clamp(-1, 1)
            x = solver.step(x_start, t, x).prev_sample
        out[name] = x
        cases.append({"name": name, "objective": objective, "timesteps": timesteps, "steps": steps,
                      "zero_terminal_snr": zero_snr, "times": solver.timesteps.tolist()})
    write_case(folder, "dpmpp", out, {"cases": cases})


def main():
    folder, arguments = folder_and_options("diffusion", __doc__)
    torch.set_num_threads(1)
    schedules(folder)
    formulas(folder, torch.Generator().manual_seed(arguments.seed))
    dpm_solver(folder)


if __name__ == "__main__":
    main()
