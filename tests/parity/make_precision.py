# SPDX-License-Identifier: MIT
"""Half precision: random decoders of the reference under torch.autocast, and torch.amp.GradScaler at work.

    python make_precision.py --out fixtures [--seed 0] [--cases 12]    writes fixtures/precision/*.safetensors

case_NN: as make_decoder.py, one training step of each stage (draws, losses, digests of the gradients), computed in
float32 (`loss`, `grads`) and under autocast on the CPU (`bf16.loss`, `fp16.grads`, ...). Gradients of fp16 are those of
128 times the loss, divided by 128. `*_noise` says how far the half precision results move when every weight moves by
one rounding of that precision. A precision in which that moves the loss by more than MOST_LOSS_NOISE or the gradients
by more than MOST_GRAD_NOISE of their size has no number to compare with: it is left out of the case, and a case
without any is drawn anew.

scaler: updates of AdamW behind unscaling and clipping, with gradients of which some are infinite or NaN: the scale,
the growth count and the weights after each.
"""
import random

import numpy as np
import torch

import make_decoder as cases
from case_files import folder_and_options, write_case, write_cases
from waves import digest, fill, nudge

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FP16_SCALE = 128.0
MOST_LOSS_NOISE, MOST_GRAD_NOISE = 0.03, 0.2
NUDGES = range(1, 9)  # gradients that cancel stand still in most of them, and move far in one of ten


def train_step(decoder, d, number, r, dtype=None):
    """@return the loss, a row of digests a parameter, and the draws"""
    draws = cases.Draws(r)
    image, embed, text = cases.inputs_of(d, max(decoder.image_sizes) + d["image_margin"])
    decoder.zero_grad()
    with cases.patched(draws) as masks, torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        loss = decoder(image, image_embed=embed, text_encodings=text, unet_number=number)
    scale = FP16_SCALE if dtype == torch.float16 else 1.0
    (loss * scale).backward()
    rows = [digest(torch.zeros(1) if p.grad is None else p.grad / scale) for p in decoder.unets[number - 1].parameters()]
    return loss.item(), np.stack(rows), cases.record_of(decoder, number, draws, masks)


def make_case(seed):
    """@return tensors and metadata, or None where the reference has no numbers, or none that stand still"""
    r = random.Random(seed)
    torch.manual_seed(seed)
    d = cases.draw_decoder(r)
    # A blur is what the reference's autocast rounds to half and we do not: see docs/parity.md.
    d.update(blur_prob=0.0, use_dynamic_thres=False)
    own = cases.draw_extra(r, d)
    decoder = cases.build(own)
    decoder.train()
    tensors, compared = {}, 0
    for number in range(1, len(d["unets"]) + 1):
        prefix, state = f"stage{number}.", r.getstate()
        loss, rows, record = train_step(decoder, d, number, r)
        end = r.getstate()
        tensors |= {f"{prefix}draw.{name}": value for name, value in record.items()}
        tensors |= {prefix + "loss": np.array([loss]), prefix + "grads": rows}
        for name, dtype in DTYPES.items():
            r.setstate(state)
            half_loss, half_rows, _ = train_step(decoder, d, number, r, dtype)
            loss_noise, noise = 0.0, np.zeros(len(half_rows))
            for nudge_seed in NUDGES:
                r.setstate(state)
                nudge(decoder.unets[number - 1].parameters(), nudge_seed, dtype)
                moved_loss, moved, _ = train_step(decoder, d, number, r, dtype)
                fill(decoder.unets[number - 1])
                loss_noise = max(loss_noise, abs(moved_loss - half_loss))
                noise = np.maximum(noise, np.linalg.norm(moved - half_rows, axis=1))
            if (loss_noise > MOST_LOSS_NOISE * abs(half_loss) or
                    np.linalg.norm(noise) > MOST_GRAD_NOISE * np.linalg.norm(half_rows[:, 0])):
                continue
            compared += 1
            at = f"{prefix}{name}."
            tensors |= {at + "loss": np.array([half_loss]), at + "loss_noise": np.array([loss_noise]),
                        at + "grads": half_rows, at + "grad_noise": noise}
        r.setstate(end)
    if compared == 0 or not all(np.isfinite(value).all() for value in tensors.values()):
        return None
    return cases.case_of(seed, d, own, tensors)


def make_scaler(seed):
    """Gradients as an fp16 backward pass might leave them, scaled; what GradScaler and AdamW make of them."""
    generator = torch.Generator().manual_seed(seed)
    r = random.Random(seed)
    options = {"init_scale": 2.0 ** r.choice((4, 8, 16)), "growth_interval": r.choice((2, 3)), "growth_factor": 2.0,
               "backoff_factor": 0.5}
    shapes = {"weight": (6, 5), "gain": (7,), "late": (3, 2)}
    parameters = {k: torch.nn.Parameter(torch.randn(s, generator=generator)) for k, s in shapes.items()}
    tensors = {f"initial.{k}": p.detach().clone() for k, p in parameters.items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=1e-2)
    scaler = torch.amp.GradScaler("cpu", **options)
    max_norm, steps, log = 0.5, 30, []
    for step in range(steps):
        fault = r.choice((None, None, None, "inf", "nan", "-inf")) if step else "inf"
        scaler.scale(torch.zeros(()))  # makes the scale
        scale = scaler.get_scale()
        for name, p in parameters.items():
            p.grad = None
            if name == "late" and step < 5:
                continue
            p.grad = torch.randn(p.shape, generator=generator) * scale
            if fault and name == r.choice(list(shapes)):
                p.grad.view(-1)[r.randrange(p.numel())] = float(fault)
            tensors[f"grad.{step}.{name}"] = p.grad.clone()
        found = not all(p.grad.isfinite().all() for p in parameters.values() if p.grad is not None)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        steps_of = {k: int(optimizer.state[p]["step"]) if p in optimizer.state else 0 for k, p in parameters.items()}
        log.append({"found_inf": found, "scale": scaler.get_scale(), "tracker": scaler._get_growth_tracker(),
                    "steps": steps_of})
        tensors |= {f"after.{step}.{k}": p.detach().clone() for k, p in parameters.items()}
    meta = {**options, "names": list(shapes), "log": log, "max_norm": max_norm, "lr": 1e-2,
            "state_dict": scaler.state_dict()}
    return {k: v.numpy() for k, v in tensors.items()}, meta


# What lies in the repository, by the numbers of the cases and of their draws: all options of a unet.
KEPT = {0: 0, 1: 2, 3: 4, 4: 6, 8: 10, 9: 11, 10: 12}


def main():
    folder, arguments = folder_and_options("precision", __doc__, cases=12, kept=KEPT)
    torch.set_num_threads(1)
    write_case(folder, "scaler", *make_scaler(arguments.seed))
    write_cases(folder, make_case, arguments)


if __name__ == "__main__":
    main()
