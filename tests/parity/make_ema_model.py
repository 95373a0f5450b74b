# SPDX-License-Identifier: MIT
"""Averages of diffusers.training_utils.EMAModel: trajectories, decays, error texts, a folder of save_pretrained.

    python make_ema_model.py --out fixtures [--seed 0]      writes fixtures/ema_model/
"""
import warnings

warnings.filterwarnings("ignore")

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.training_utils import EMAModel
from torch import nn

from case_files import folder_and_options, write_case

SHAPES = {"weight": (4, 3), "frozen": (2, 2), "bias": (5,), "scale": ()}
OPTIONS = {
    "defaults": {},
    "warmup": {"use_ema_warmup": True, "power": 0.75, "decay": 0.6},
    "shape": {"use_ema_warmup": True, "inv_gamma": 3.5, "update_after_step": 2, "foreach": True},
    "clamped": {"decay": 0.3, "min_decay": 0.25, "update_after_step": 1},
    "crossed": {"decay": 0.2, "min_decay": 0.4, "foreach": True},
}
REFUSED = [("decay", 1.5), ("decay", -0.1), ("min_decay", 1), ("min_decay", "a"), ("optimization_step", 2.5),
           ("update_after_step", "1"), ("use_ema_warmup", 1), ("inv_gamma", "a"), ("power", None),
           ("shadow_params", {"a": 1}), ("shadow_params", [1.0])]


class Tiny(ModelMixin, ConfigMixin):
    @register_to_config
    def __init__(self, width: int = 4):
        super().__init__()
        self.inner = nn.Linear(width, 2)
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("seen", torch.zeros(2))


def scalars(average):
    return {k: v for k, v in average.state_dict().items() if k != "shadow_params"}


def trajectory(folder, name, options, generator, steps=9):
    draw = lambda shape: torch.randn(shape, generator=generator)
    parameters = {k: nn.Parameter(draw(s), requires_grad=k != "frozen") for k, s in SHAPES.items()}
    average = EMAModel(parameters.values(), **options)
    tensors = {f"initial.{k}": p.detach().clone() for k, p in parameters.items()}
    decays = []
    for step in range(steps):
        for k, p in parameters.items():
            p.data.copy_(draw(p.shape))
            tensors[f"online.{step}.{k}"] = p.detach().clone()
        average.step(parameters.values())
        decays.append(average.cur_decay_value)
        tensors |= {f"average.{step}.{k}": s.clone() for k, s in zip(parameters, average.shadow_params)}
    far = [0, 1, 2, 3, 10, 100, 1000, 31600, 1000000]
    write_case(folder, name, tensors, {"options": options, "names": list(SHAPES), "steps": steps, "decays": decays,
                                  "far": far, "far_decays": [average.get_decay(k) for k in far],
                                  "keys": list(average.state_dict()), "state": scalars(average)})


def refusals():
    out = []
    for key, value in REFUSED:
        try:
            EMAModel([nn.Parameter(torch.ones(2))]).load_state_dict({key: value})
        except ValueError as error:
            out.append({"key": key, "value": value, "message": str(error)})
    assert len(out) == len(REFUSED), out
    average = EMAModel([nn.Parameter(torch.ones(2))])
    texts = {}
    for name, call in (("restore", lambda: average.restore([])), ("model_cls", lambda: average.save_pretrained("x"))):
        try:
            call()
        except (RuntimeError, ValueError) as error:
            texts[name] = str(error)
    average.model_cls = Tiny
    try:
        average.save_pretrained("x")
    except ValueError as error:
        texts["model_config"] = str(error)
    return {"load_state_dict": out, **texts}


def pretrained(folder, generator):
    torch.manual_seed(generator.initial_seed())
    model = Tiny()
    average = EMAModel(model.parameters(), decay=0.95, min_decay=0.1, update_after_step=1, use_ema_warmup=True,
                       inv_gamma=2.0, power=0.75, model_cls=Tiny, model_config=dict(model.config))
    for _ in range(5):
        for p in model.parameters():
            p.data.copy_(torch.randn(p.shape, generator=generator))
        average.step(model.parameters())
    average.save_pretrained(folder / "pretrained")
    for path in (folder / "pretrained").iterdir():
        path.chmod(0o644)
    write_case(folder, "pretrained_state", {str(i): s for i, s in enumerate(average.shadow_params)}, scalars(average))


def main():
    folder, arguments = folder_and_options("ema_model", __doc__)
    generator = torch.Generator().manual_seed(arguments.seed)
    for name, options in OPTIONS.items():
        trajectory(folder, name, options, generator)
    write_case(folder, "refusals", {"none": torch.zeros(1)}, refusals())
    pretrained(folder, generator)


if __name__ == "__main__":
    main()
