# SPDX-License-Identifier: MIT
"""Where a result of a VAE hangs on a rounding: which code is the nearest, and on which side of a kink a value lies."""
import unittest.mock

import torch
import vector_quantize_pytorch.vector_quantize_pytorch as quantizers
from torch.overrides import TorchFunctionMode

EPSILON = torch.finfo(torch.float32).eps
# Roundings of a latent, by its length: some twenty layers whose sums may have another order.
LATENT_ROUNDINGS = 32
# Roundings of a value at a kink, by the largest value of its map: norms enlarge those of the layers before.
KINK_ROUNDINGS = 16
KINK_MOVES = 3
# Roundings of a squared distance |x|^2 - 2 xy + |y|^2, by |x|^2 + |y|^2.
DISTANCE_ROUNDINGS = 4


def close_to_zero(values, scale, roundings):
    """Which of `values` are within `roundings` of the largest of `scale`."""
    return values.detach().abs() < roundings * EPSILON * scale.detach().abs().max()


class CloseChoices(TorchFunctionMode):
    """While it is entered, `found` becomes True where a value is so near a border that roundings can move it over.

    It sees what decides: `argmax` over scores of codes (the nearest code, and the buckets of k-means), and `x > 0` of lookup-free codes. A
    case with such a choice has no single right answer, so its maker leaves it out.
    """
    def __init__(self, latent_roundings=LATENT_ROUNDINGS):
        super().__init__()
        self.found = False
        self.choices_of_codes = 0
        self._latent_roundings = latent_roundings
        self._squared_lengths = None
        self._patch = unittest.mock.patch.object(quantizers, "cdist", self._distances)
        self._cdist = quantizers.cdist

    def __enter__(self):
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *exception):
        self._patch.stop()
        return super().__exit__(*exception)

    def _distances(self, x, y):
        self._squared_lengths = float(x.detach().square().sum(-1).max() + y.detach().square().sum(-1).max())
        return self._cdist(x, y)

    def _nearest_is_close(self, scores):
        """@param scores minus the distances, or the cosines of unit vectors, over the last dimension"""
        best = scores.detach().double().topk(2, dim=-1).values
        if self._squared_lengths is None:
            squared_lengths, squares = 2.0, (2 - 2 * best).clamp_min(0)
        else:
            squared_lengths, squares = self._squared_lengths, best.square()
        self._squared_lengths = None
        roundings = DISTANCE_ROUNDINGS * squared_lengths + self._latent_roundings * squared_lengths**0.5 * squares.sqrt().sum(-1)
        return bool((squares[..., 1] - squares[..., 0] < EPSILON * roundings).any())

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name == "argmax":
            self.choices_of_codes += 1
            self.found |= self._nearest_is_close(args[0])
        elif name in ("gt", "__gt__") and isinstance(args[0], torch.Tensor) and args[0].is_floating_point() \
                and not isinstance(args[1], torch.Tensor) and args[1] == 0:
            self.choices_of_codes += 1
            self.found |= bool(close_to_zero(args[0], args[0], self._latent_roundings).any())
        return function(*args, **(kwargs or {}))


class _AtKinks(TorchFunctionMode):
    """Hands on what lies at each kink of a run: the argument of a ReLU, and the difference of an l1_loss."""
    def at_kink(self, values, scale):
        """@param scale what `values` is made of @return where it is to lie on the other side, or None for nowhere"""
        raise NotImplementedError

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        made = function(*args, **kwargs)
        if name in ("relu", "leaky_relu"):
            x = args[0]
            moved = self.at_kink(x, x)
            slope = 0.0 if name == "relu" else kwargs.get("negative_slope", args[1] if len(args) > 1 else 0.01)
            return made if moved is None else torch.where(moved, torch.where(x > 0, slope * x, x), made)
        if name == "l1_loss":
            assert kwargs.get("reduction", "mean") == "mean"
            rest = args[0] - args[1]
            moved = self.at_kink(rest, args[0])
            return made if moved is None else torch.where(moved, -rest.abs(), rest.abs()).mean()
        return made


class _Seen(_AtKinks):
    def __init__(self):
        super().__init__()
        self.values, self.scales = [], []

    def at_kink(self, values, scale):
        self.values.append(values.detach().clone())
        self.scales.append(float(scale.detach().abs().max()))


class _OtherSides(_AtKinks):
    """Half of the values within reach of a kink lie on the other side of it. In a single pass the values hardly change, but their gradients
    do.
    """
    def __init__(self, reach, seed):
        super().__init__()
        self._reach = iter(reach)
        self._generator = torch.Generator().manual_seed(seed)

    def at_kink(self, values, scale):
        return (values.detach().abs() < next(self._reach)) & (torch.rand(values.shape, generator=self._generator) < 0.5)


def of_planes(values):
    """The largest of each plane of a map [B, C, H, W], or of all values."""
    return values.amax((2, 3), keepdim=True) if values.dim() == 4 else values.max()


RUNS_WITH_OTHER_SIDES = 6
ROUNDINGS_ALLOWED = 20  # kNoiseStepsAllowed of tests/support/rounding_noise.h


class Kinks:
    """The kinks of a run, and how far from each of them roundings can move a value over it.

    That is a few roundings of the map's largest value, or KINK_MOVES times what moved weights change in its plane: norms of planes that are
    nearly constant enlarge roundings.
    """
    def __init__(self):
        self._first = None
        self._reach = []

    def see(self, run):
        """The result of `run`, a single pass, whose kinks are compared with those of the first run."""
        with _Seen() as seen:
            result = run()
        if self._first is None:
            self._first = seen.values
            self._reach = [torch.tensor(KINK_ROUNDINGS * EPSILON * scale) for scale in seen.scales]
        assert len(seen.values) == len(self._first)
        moves = [of_planes((values - first).abs()) for values, first in zip(seen.values, self._first)]
        self._reach = [torch.maximum(reach, KINK_MOVES * move) for reach, move in zip(self._reach, moves)]
        return result

    def _movement(self, one, run):
        """How far each tensor of `one` moves at most if values within reach of a kink lie on the other side."""
        most = dict.fromkeys(one, 0.0)
        for seed in range(RUNS_WITH_OTHER_SIDES):
            with _OtherSides(self._reach, seed):
                other = run()
            most = {name: max(most[name], float((other[name].double() - value.double()).abs().max())) for name, value in one.items()}
        return most

    def add_to(self, noise, run, one):
        """Adds the kinks that `run` meets to the rounding noise of each tensor of `one`.

        @return how far a tensor moves at most; the noise for the tests, which allow twenty times as much: of kinks, what they move
        """
        kinks = self._movement(one, run)
        moved = {name: max(value, kinks[name]) for name, value in noise.items()}
        return moved, {name: max(value, kinks[name] / ROUNDINGS_ALLOWED) for name, value in noise.items()}


def hides(noise, share, sizes):
    """Whether the tests would allow more than `share` of a tensor's size. @param sizes by name"""
    return any(ROUNDINGS_ALLOWED * noise[name] > share * size for name, size in sizes.items())


def biases_without_gradient(gradients):
    """Names of biases before a norm, or of a hinge loss, in a dict of gradients: theirs is zero in exact arithmetic."""
    def largest(name):
        return float(gradients[name].abs().max())

    pairs = [(name, name.removesuffix("bias") + "weight") for name in gradients if name.endswith(".bias")]
    return {bias for bias, weight in pairs if weight in gradients and largest(bias) < 1e-3 * largest(weight)}
