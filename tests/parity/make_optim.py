# SPDX-License-Identifier: MIT
"""Trajectories of optimizers, learning rates and averages, made by torch.optim, pytorch_warmup and
ema_pytorch as dalle2_pytorch's DecoderTrainer puts them together.

    python make_optim.py --out fixtures [--seed 0]      writes fixtures/optim/*.safetensors
"""

import pytorch_warmup as warmup
import torch
from dalle2_pytorch.optimizer import get_optimizer
from ema_pytorch import EMA
from torch import nn

from case_files import folder_and_options, write_case

SHAPES = {
    "token": (1, 2, 3),
    "conv_weight": (4, 3, 3, 3),
    "conv_bias": (4,),
    "norm_g": (5,),
    "late_weight": (3, 17),      # gets its first gradient in the middle
    "late_bias": (3,),
    "never_weight": (2, 2),      # gets none
    "gain": (1, 6, 1, 1),
    "scale": (),
    "sometimes": (7,),           # gets one every third step
}


def has_gradient(name, step):
    if name.startswith("never"):
        return False
    if name.startswith("late"):
        return step >= 7
    if name == "sometimes":
        return step % 3 == 1
    return True


def optimizer_case(folder, name, generator, lr, wd, eps, grouped, max_grad_norm, steps=12):
    params = {k: nn.Parameter(torch.randn(s, generator=generator)) for k, s in SHAPES.items()}
    optimizer = get_optimizer(params.values(), lr=lr, wd=wd, eps=eps, group_wd_params=grouped)
    tensors = {f"initial.{k}": v for k, v in params.items()}
    tensors = {k: v.detach().clone() for k, v in tensors.items()}
    norms = []
    for step in range(steps):
        for k, p in params.items():
            p.grad = None
            if has_gradient(k, step):
                p.grad = torch.randn(p.shape, generator=generator) * (0.05 if step % 4 else 2.0)
                tensors[f"grad.{step}.{k}"] = p.grad.clone()
        if max_grad_norm is not None:
            norms.append(torch.nn.utils.clip_grad_norm_(params.values(), max_grad_norm).item())
        optimizer.step()
        for k, p in params.items():
            tensors[f"after.{step}.{k}"] = p.detach().clone()
    state = optimizer.state_dict()
    for index, entry in state["state"].items():
        for k, v in entry.items():
            tensors[f"state.{index}.{k}"] = v
    meta = dict(lr=lr, wd=wd, eps=eps, betas=[0.9, 0.99], group_wd_params=grouped, steps=steps,
                max_grad_norm=max_grad_norm, norms=norms, names=list(SHAPES),
                groups=[dict(weight_decay=g["weight_decay"], params=g["params"]) for g in state["param_groups"]],
                order=[next(k for k, p in params.items() if p is q)
                       for g in optimizer.param_groups for q in g["params"]])
    write_case(folder, name, tensors, meta)


def lr_sequence(lr, warmup_steps, cosine, steps):
    parameter = nn.Parameter(torch.zeros(2, 2))
    optimizer = get_optimizer([parameter], lr=lr, wd=1e-2)
    if cosine is not None:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cosine)
    else:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda step: 1.0)
    dampener = warmup.LinearWarmup(optimizer, warmup_period=warmup_steps) if warmup_steps else None
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        parameter.grad = torch.ones(2, 2)
        optimizer.step()
        if dampener is None:
            scheduler.step()
        else:
            with dampener.dampening():
                scheduler.step()
    return rates


class Averaged(nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5, generator=generator))
        self.bias = nn.Parameter(torch.randn(3, generator=generator))
        self.register_buffer("running", torch.randn(4, generator=generator))
        self.register_buffer("count", torch.tensor(3))


def ema_case(folder, name, generator, calls, **options):
    model = Averaged(generator)
    ema = EMA(model, **options)
    tensors = {f"initial.{k}": v for k, v in model.state_dict().items()}
    tensors = {k: v.clone() for k, v in tensors.items()}
    decays = []
    for call in range(calls):
        with torch.no_grad():
            for k, v in model.state_dict().items():
                v.copy_(torch.randn(v.shape, generator=generator) if v.is_floating_point() else v + 1)
                tensors[f"online.{call}.{k}"] = v.clone()
        ema.update()
        decays.append(float(ema.get_current_decay()))
        for k, v in ema.ema_model.state_dict().items():
            tensors[f"average.{call}.{k}"] = v.clone()
        for k, v in model.state_dict().items():
            tensors[f"online_after.{call}.{k}"] = v.clone()
    meta = dict(options=options, calls=calls, decays=decays, initted=bool(ema.initted), step=int(ema.step))
    write_case(folder, name, tensors, meta)


def main():
    folder, arguments = folder_and_options("optim", __doc__)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(arguments.seed)

    optimizer_case(folder, "optimizer_adamw", generator, 1e-3, 1e-2, 1e-8, True, None)
    optimizer_case(folder, "optimizer_adamw_clip", generator, 3e-3, 5e-2, 1e-6, True, 0.5)
    optimizer_case(folder, "optimizer_adamw_one_group", generator, 1e-3, 2e-1, 1e-8, False, None)
    optimizer_case(folder, "optimizer_adam", generator, 1e-3, 0, 1e-8, True, 0.5)

    drawn = [int(torch.randint(2, 12, (), generator=generator)) for _ in range(4)]
    rates = [dict(lr=lr, warmup_steps=w, cosine_decay_max_steps=c, rates=lr_sequence(lr, w, c, 30))
             for lr, w, c in ((1.0, None, None), (1.0, 4, None), (1.0, None, 8), (1.0, 4, 8), (3e-4, 1, 30),
                              (2e-3, drawn[0], drawn[1]), (5e-4, drawn[2], drawn[3]))]
    write_case(folder, "lr", {"unused": torch.zeros(1)}, dict(sequences=rates))

    ema_case(folder, "ema_after_3_every_2", generator, 12, beta=0.99, update_after_step=3, update_every=2)
    ema_case(folder, "ema_after_0_every_1", generator, 8, beta=0.9, update_after_step=0, update_every=1)
    ema_case(folder, "ema_defaults", generator, 12)
    ema_case(folder, "ema_frozen", generator, 8, beta=1.0, update_after_step=2, update_every=1)
    ema_case(folder, "ema_shape", generator, 12, beta=0.95, update_after_step=1, update_every=2, inv_gamma=2.0,
             power=0.75, min_value=0.4)
    ema_case(folder, "ema_copy_back", generator, 12, beta=0.9, update_after_step=0, update_every=2,
             update_model_with_ema_every=3)


if __name__ == "__main__":
    main()
