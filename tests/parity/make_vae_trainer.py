# SPDX-License-Identifier: MIT
"""Steps of a VQGAN-VAE's training: both losses, and the weights of both parts after Adam's updates, by the references' networks.

    python tests/parity/make_vae_trainer.py [--seed N] [--cases N] [--out FOLDER]

The order is that of muse's trainer: the autoencoder's update, then on other pictures the discriminator's, whose gradients were cleared
before. Its faults are left out: parameters in the order of a set, clipping over both parts. The fixture has each step's two losses, and
the weights and codes after the last, compact as in make_unet.py. The noise of a value is that of moved weights and gradients, or of kinks.
"""
import copy
import random

import torch

from case_files import folder_and_options, write_cases
from close_choices import CloseChoices, Kinks, biases_without_gradient, hides
from make_unet import compact, rounding_noise
from make_vae import SORTS, Features, as_bytes, draw_config, losses_turn, make_vae, mostly_one_code, pictures, quantizer_of
from waves import fill

STEPS, LR = 3, 3e-4
LARGEST_SHARE = 0.5  # of a weight's movement, that the tests may allow
GRADIENT_ROUNDINGS = 8  # of the largest gradient of a tensor: sums in another order


def move_by_roundings(parameters, generator):
    """Moves the gradients. Adam makes a whole step of a gradient that is nothing but a rounding."""
    for p in parameters:
        if p.grad is not None:
            signs = torch.randint(0, 2, p.grad.shape, generator=generator) * 2 - 1
            p.grad += signs * GRADIENT_ROUNDINGS * torch.finfo(torch.float32).eps * p.grad.abs().max()


def train(vae, config, features, batches, seed, roundings=None):
    """@param roundings a generator: gradients are moved by it
    @return what is compared; the codes of the first pictures at the end; how far weights moved, without those that have no gradient
    """
    found = {}
    start = {name: compact(p) for name, p in vae.named_parameters()}
    gradients = {}
    if config["use_vgg_and_gan"]:
        setattr(vae, "_vgg" if config["kind"] == "muse" else "vgg", features)
    vae.train()
    own = [p for name, p in vae.named_parameters() if not name.startswith("discr.")]
    optimizer = torch.optim.Adam(own, lr=LR)
    discr_optimizer = torch.optim.Adam(vae.discr.parameters(), lr=LR) if vae.discr is not None else None
    torch.manual_seed(seed)  # of the first codes; nothing else is drawn
    for step in range(STEPS):
        loss = vae(batches[2 * step].clone(), return_loss=True)
        optimizer.zero_grad()
        loss.backward()
        if roundings is not None:
            move_by_roundings(own, roundings)
        if step == 0:
            gradients |= {name: p.grad.clone() for name, p in vae.named_parameters() if p.grad is not None}
        torch.nn.utils.clip_grad_norm_(own, 0.5)
        optimizer.step()
        found[f"loss.{step}"] = loss
        if discr_optimizer is None:
            continue
        discr_optimizer.zero_grad()
        loss = vae(batches[2 * step + 1].clone(), return_discr_loss=True)
        loss.backward()
        if roundings is not None:
            move_by_roundings(vae.discr.parameters(), roundings)
        if step == 0:
            gradients |= {name: p.grad.clone() for name, p in vae.named_parameters() if name.startswith("discr.") and p.grad is not None}
        discr_optimizer.step()
        found[f"discr_loss.{step}"] = loss
    with torch.no_grad():
        vae.eval()
        encoded = vae.encode(batches[0])
        indices = encoded[1] if config["kind"] == "muse" else vae.vq(encoded)[1]
    found |= {f"weights.{name}": compact(p) for name, p in vae.named_parameters()}
    found |= {f"codes.{name}": b for name, b in quantizer_of(vae).named_buffers() if "_codebook" in name}
    steady = start.keys() - biases_without_gradient(gradients)
    moved = {f"weights.{name}": float((found[f"weights.{name}"] - start[name]).abs().max()) for name in steady}
    return {name: value.detach().clone() for name, value in found.items()}, indices, moved


def make_case(number, sort):
    rng = random.Random(number)
    config = draw_config(rng, sort) | {"vq_threshold_ema_dead_code": 0}
    if config["kind"] == "muse" and config.get("lookup_free_quantization", True):
        del config["vq_threshold_ema_dead_code"]
    torch.manual_seed(number)
    vae = make_vae(config)
    fill(vae)
    generator = torch.Generator().manual_seed(number)
    features = Features(generator)
    batches = [pictures(generator, config["channels"]) for _ in range(2 * STEPS)]
    codebook = {f"codebook.{name}": value.clone() for name, value in vae.state_dict().items() if "_codebook" in name}
    start = copy.deepcopy(vae)
    kinks = Kinks()
    with CloseChoices() as close:
        one, indices, trained = kinks.see(lambda: train(vae, config, features, batches, number))
    assert close.choices_of_codes > 0
    if close.found or mostly_one_code(indices) or any(not value.isfinite().all() for value in one.values()):
        return None
    roundings = torch.Generator().manual_seed(number)
    # Kinks do not see these runs: Adam moves values by far more than one pass does, and `noise` holds what crosses a kink then.
    noise = rounding_noise(one, start, lambda moved: train(moved, config, features, batches, number, roundings)[0], number)
    moved, noise = kinks.add_to(noise, lambda: train(copy.deepcopy(start), config, features, batches, number)[0], one)
    if losses_turn(one, moved) or any(moved[name] > 1e-2 for name in one if name.startswith("codes.")):
        return None
    if hides(noise, LARGEST_SHARE, trained):
        return None
    tensors = {f"batch.{i}": as_bytes(batch) for i, batch in enumerate(batches)} | {"features": features.weight} | codebook | one
    return {name: value.numpy() for name, value in tensors.items()}, {"config": config, "seed": number, "noise": noise}


def main():
    folder, arguments = folder_and_options("vae_trainer", __doc__, cases=5)
    torch.set_num_threads(1)
    write_cases(folder, make_case, arguments, SORTS)


if __name__ == "__main__":
    main()
