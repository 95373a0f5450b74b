# SPDX-License-Identifier: MIT
"""Inputs and weights that need no room in a fixture, for the reader makes them anew; and what is kept of a gradient."""
import numpy as np
import torch


def wave(shape, f=0.37, phase=0.0, scale=1.0, offset=0.0):
    i = np.arange(int(np.prod(shape)), dtype=np.float64)
    return torch.from_numpy((offset + scale * np.sin(f * i + phase)).astype(np.float32)).reshape(tuple(shape))


def fill(module):
    """Each parameter is a function of its name and of the flat index; gains lie about 1. As in tests/support/fixture.h."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name.endswith("rotary_emb.freqs"):
                continue
            gain = p.numel() == max(p.shape, default=1) and not name.endswith("bias")
            p.copy_(wave(p.shape, 0.7, sum(name.encode()) % 97, 0.1, 1.0 if gain else 0.0))


def nudge(tensors, seed, dtype=torch.float32):
    """Moves every number by one rounding of `dtype`, up or down."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for t in tensors:
            signs = torch.randint(0, 2, t.shape, generator=generator) * 2 - 1
            t.mul_(1 + signs * torch.finfo(dtype).eps)


def digest(t):
    """[11]: L2 norm, projections on two unit waves, eight evenly spread entries."""
    t = t.detach().double().flatten()
    n = t.numel()
    values = [t.norm().item()]
    for f, phase in ((0.37, 0.0), (1.13, 0.5)):
        w = wave((n,), f, phase).double()
        values.append((t @ (w / w.norm())).item() if w.norm() > 0 else 0.0)
    values += [t[i * n // 8].item() for i in range(8)]
    return np.array(values)
