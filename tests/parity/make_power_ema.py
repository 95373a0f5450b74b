# SPDX-License-Identifier: MIT
"""Power-function averages of ema_pytorch's post-hoc EMA: exponents, trajectories, weights of a combination.

    python make_power_ema.py --out fixtures [--seed 0]      writes fixtures/power_ema/
"""
import random
import warnings

warnings.filterwarnings("ignore")

import torch
from ema_pytorch.post_hoc_ema import KarrasEMA, sigma_rel_to_gamma, solve_weights
from torch import nn

from case_files import folder_and_options, write_case

STEPS = 12


def trajectory(sigma, generator):
    """KarrasEMA counts from 2 and copies what it finds; so begun with the weights of step 1, it is the paper's."""
    model = nn.Linear(3, 2)
    weights, averages = [], []
    average = None
    for step in range(STEPS):
        for parameter in model.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
        if average is None:
            average = KarrasEMA(model, sigma_rel=sigma, update_every=1)
            average.initted.fill_(True)
        else:
            average.update()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        averages.append(torch.cat([p.detach().flatten() for p in average.ema_model.parameters()]))
    return torch.stack(weights), torch.stack(averages)


def combinations(draw):
    cases = []
    for _ in range(6):
        sigmas = sorted(draw.sample([0.03, 0.05, 0.08, 0.1, 0.15, 0.2], 2))
        every, count = draw.choice([100, 250, 1000]), draw.randint(2, 6)
        steps = [every * (i + 1) for i in range(count) for _ in sigmas]
        gammas = [sigma_rel_to_gamma(s) for _ in range(count) for s in sigmas]
        wanted = {"sigma": draw.uniform(sigmas[0], sigmas[1]), "step": draw.choice(steps)}
        weights = solve_weights(torch.tensor(steps), torch.tensor(gammas, dtype=torch.float64),
                                torch.tensor([wanted["step"]]),
                                torch.tensor([sigma_rel_to_gamma(wanted["sigma"])], dtype=torch.float64))
        cases.append({"steps": steps, "gammas": gammas, **wanted, "weights": weights.flatten().tolist()})
    return cases


def main():
    folder, arguments = folder_and_options("power_ema", __doc__)
    draw = random.Random(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    sigmas = [0.01, 0.05, 0.1, 0.2, 0.28] + [draw.uniform(0.005, 0.28) for _ in range(5)]
    sigma = draw.uniform(0.04, 0.2)
    weights, averages = trajectory(sigma, generator)
    meta = {"gammas": [[s, sigma_rel_to_gamma(s)] for s in sigmas], "sigma": sigma, "combinations": combinations(draw)}
    write_case(folder, "power_ema", {"weights": weights, "averages": averages}, meta)


if __name__ == "__main__":
    main()
