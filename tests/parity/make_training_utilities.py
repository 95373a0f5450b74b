# SPDX-License-Identifier: MIT
"""The formulas of diffusers.training_utils, and of its training scripts where they have no function, on our schedules.

    python make_training_utilities.py --out fixtures [--seed 0]      writes fixtures/training_utilities/*.safetensors
"""
import types
import warnings

warnings.filterwarnings("ignore")

import torch
from diffusers import training_utils

import dalle2_pytorch.dalle2_pytorch as reference

from case_files import folder_and_options, write_case


def scheduler(kind, timesteps, prediction_type="epsilon"):
    """What training_utils reads of a scheduler of diffusers, with a schedule of the reference."""
    acp = reference.NoiseScheduler(beta_schedule=kind, timesteps=timesteps, loss_type="l2").alphas_cumprod
    return types.SimpleNamespace(alphas_cumprod=acp, config=types.SimpleNamespace(prediction_type=prediction_type))


def weights(folder, generator):
    """compute_snr; the weights that text_to_image and the Kandinsky prior make of it; the weighting of SD3."""
    out, cases = {}, []
    for kind, timesteps in (("cosine", 1000), ("linear", 1000), ("cosine", 25), ("jsd", 10)):
        t = torch.cat([torch.tensor([0, timesteps // 2, timesteps - 1]),
                       torch.randint(0, timesteps, (13,), generator=generator)])
        snr = training_utils.compute_snr(scheduler(kind, timesteps), t)
        gamma = float(torch.empty(()).uniform_(1, 8, generator=generator))
        clipped = torch.stack([snr, gamma * torch.ones_like(t)], dim=1).min(dim=1)[0]
        name = f"{kind}.{timesteps}"
        out[f"{name}.t"], out[f"{name}.snr"] = t, snr
        out[f"{name}.eps"], out[f"{name}.v"], out[f"{name}.x_start"] = clipped / snr, clipped / (snr + 1), clipped
        cases.append({"kind": kind, "timesteps": timesteps, "gamma": gamma})
    sigmas = torch.cat([torch.tensor([0.001, 0.5, 1.0]), torch.rand(13, generator=generator).clamp_min(1e-3)])
    out["sigmas"] = sigmas
    for scheme in ("sigma_sqrt", "cosmap", "none"):
        out[scheme] = training_utils.compute_loss_weighting_for_sd3(scheme, sigmas)
    write_case(folder, "weights", out, {"cases": cases})


def densities(folder, seed):
    """compute_density_for_timestep_sampling, and the numbers that the same seed gives without a scheme."""
    count, out, cases = 64, {}, []
    for i, (scheme, parameters) in enumerate((("logit_normal", {"logit_mean": 0.0, "logit_std": 1.0}),
                                              ("logit_normal", {"logit_mean": -0.7, "logit_std": 0.4}),
                                              ("logit_normal", {"logit_mean": 1.3, "logit_std": 0.0}),
                                              ("mode", {"mode_scale": 1.29}), ("mode", {"mode_scale": -0.5}))):
        draw_seed = 1000 * seed + i
        generator = lambda: torch.Generator().manual_seed(draw_seed)
        draw = torch.randn if scheme == "logit_normal" else torch.rand
        out[f"{i}.draws"] = draw(count, generator=generator())
        out[f"{i}.u"] = u = training_utils.compute_density_for_timestep_sampling(scheme, count, generator=generator(),
                                                                                **parameters)
        # As in train_dreambooth_lora_sd3.py: an index into times that run from the noisiest to the cleanest.
        timesteps = 1000
        out[f"{i}.times"] = torch.arange(timesteps).flip(0)[(u * timesteps).long().clamp(0, timesteps - 1)]
        cases.append({"scheme": scheme, "seed": draw_seed, **parameters})
    write_case(folder, "densities", out, {"cases": cases})


def dream(folder, generator):
    """compute_dream_and_update_latents of a stub that answers 0.3 x + 0.05, behind an offset and a perturbation."""
    out, cases = {}, []
    randn = lambda *shape: torch.randn(*shape, generator=generator)
    for i, (kind, timesteps, power, offset, perturbation) in enumerate(
            (("cosine", 1000, 1.0, 0.0, 0.0), ("linear", 25, 0.5, 0.1, 0.0), ("cosine", 25, 2.0, 0.0, 0.1),
             ("cosine", 50, 0.0, 0.05, 0.2))):
        source = scheduler(kind, timesteps)
        x_start, noise = randn(4, 3, 6, 6), randn(4, 3, 6, 6)
        offset_draws, perturbation_draws = randn(4, 3, 1, 1), randn(4, 3, 6, 6)
        t = torch.cat([torch.tensor([0, timesteps - 1]), torch.randint(0, timesteps, (2,), generator=generator)])
        out |= {f"{i}.x_start": x_start, f"{i}.noise": noise, f"{i}.t": t, f"{i}.offset": offset_draws,
                f"{i}.perturbation": perturbation_draws}
        noise = noise + offset * offset_draws                       # as in train_text_to_image.py
        input_noise = noise + perturbation * perturbation_draws
        acp = source.alphas_cumprod[t].view(-1, 1, 1, 1)
        noisy = acp.sqrt() * x_start + (1 - acp).sqrt() * input_noise
        stub = lambda x, t, condition: types.SimpleNamespace(sample=0.3 * x + 0.05)
        out[f"{i}.target_noise"], out[f"{i}.noisy"] = noise, noisy
        out[f"{i}.dream_noisy"], out[f"{i}.dream_target"] = training_utils.compute_dream_and_update_latents(
            stub, source, t, noise, noisy, noise, None, power)
        cases.append({"kind": kind, "timesteps": timesteps, "detail_preservation": power, "offset": offset,
                      "perturbation": perturbation})
    messages = {}
    for prediction_type in ("v_prediction", "sample"):
        try:
            training_utils.compute_dream_and_update_latents(stub, scheduler(kind, timesteps, prediction_type), t, noise,
                                                            noisy, noise, None)
        except (NotImplementedError, ValueError) as error:
            messages[prediction_type] = str(error)
    write_case(folder, "dream", out, {"cases": cases, "messages": messages})


def main():
    folder, arguments = folder_and_options("training_utilities", __doc__)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(arguments.seed)
    weights(folder, generator)
    densities(folder, arguments.seed)
    dream(folder, generator)


if __name__ == "__main__":
    main()
