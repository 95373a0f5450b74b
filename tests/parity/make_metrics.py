# SPDX-License-Identifier: MIT
"""FID, KID and IS of features, by torchmetrics' own classes; precision and recall by torch-fidelity.

    python make_metrics.py --out fixtures [--seed 0]      writes fixtures/metrics/

The classes are given a network that answers with its input, so what they are shown is features. What they draw (subsets, the
order of the samples) is drawn here and handed to them.
"""
import random
import warnings

warnings.filterwarnings("ignore")

import torch
from torch import nn
from torch_fidelity.metric_prc import calculate_precision_recall_full
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

from case_files import folder_and_options, write_case

CASES = 12


class Echo(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.num_features = width

    def forward(self, features):
        return features


def with_permutations(permutations, compute):
    """Runs it with torch.randperm giving these, one after the other."""
    queue, original = list(permutations), torch.randperm
    torch.randperm = lambda n, *a, **k: queue.pop(0)
    try:
        return [float(v) for v in compute()]
    finally:
        torch.randperm = original
        assert not queue


def draw_features(rng, generator, kind):
    """As after a ReLU, and correlated: what networks give. Some sets have fewer samples than features."""
    width = rng.choice([5, 8, 20])
    counts = [rng.randint(2, width) if kind == "few" else rng.randint(width + 1, 6 * width) for _ in range(2)]
    mix = torch.randn(width, width, generator=generator) / width ** 0.5
    sets = []
    for count in counts:
        rows = torch.randn(count, width, generator=generator) @ mix + 0.3 * torch.randn(width, generator=generator)
        sets.append(torch.relu(rows + 0.5))
    if kind == "equal":
        sets[1] = sets[0].clone()
    if kind == "flat":
        sets[1][:, : width // 2] = 0.25  # features that never change
    return sets


def distances(real, generated):
    fid = FrechetInceptionDistance(feature=Echo(real.shape[1]), input_img_size=(1, 1, 1))
    fid.set_dtype(torch.float64)
    fid.update(real.double(), real=True)
    fid.update(generated.double(), real=False)
    return fid.compute().item()


def kernels(rng, generator, real, generated):
    size = rng.randint(2, min(len(real), len(generated)))
    options = dict(subsets=rng.randint(1, 5), subset_size=size, degree=rng.choice([1, 2, 3, 4]),
                   gamma=rng.choice([None, 0.05, 0.5]), coef=rng.choice([1.0, 0.3]))
    kid = KernelInceptionDistance(feature=Echo(real.shape[1]), **options)
    kid.update(real.double(), real=True)
    kid.update(generated.double(), real=False)
    drawn = [torch.randperm(len(rows), generator=generator) for _ in range(options["subsets"]) for rows in (real, generated)]
    mean, deviation = with_permutations(drawn, kid.compute)
    subsets = {"of_real": torch.stack([p[:size] for p in drawn[0::2]]), "of_generated": torch.stack([p[:size] for p in drawn[1::2]])}
    return dict(options, mean=mean, deviation=deviation), subsets


def score(rng, generator):
    count, classes = rng.choice([1, 3, 7, 20, 41]), rng.choice([2, 10])
    logits = torch.randn(count, classes, generator=generator) * rng.choice([0.1, 2.0, 30.0])
    splits = rng.choice([1, 3, 10])
    metric = InceptionScore(feature=Echo(classes), splits=splits)
    metric.update(logits.double())
    mean, deviation = with_permutations([torch.arange(count)], metric.compute)
    return dict(splits=splits, mean=mean, deviation=None if deviation != deviation else deviation), logits


def main():
    folder, arguments = folder_and_options("metrics", __doc__)
    rng, generator = random.Random(arguments.seed), torch.Generator().manual_seed(arguments.seed)
    for case in range(CASES):
        real, generated = draw_features(rng, generator, ["many", "few", "flat", "equal"][case % 4])
        kid, subsets = kernels(rng, generator, real, generated)
        inception, logits = score(rng, generator)
        neighbours = min(3, len(real) - 1, len(generated) - 1)
        precision, recall = calculate_precision_recall_full(generated.double(), real.double(), neighbours)
        summary = dict(fid=distances(real, generated), kid=kid, inception=inception, neighbours=neighbours, precision=precision, recall=recall)
        write_case(folder, f"case_{case:02d}", {"real": real, "generated": generated, "logits": logits, **subsets}, summary)


if __name__ == "__main__":
    main()
