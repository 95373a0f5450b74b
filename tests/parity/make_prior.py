# SPDX-License-Identifier: MIT
"""Diffusion priors of random configurations, run by dalle2-pytorch 1.15.6: outputs of the network, a training step
with every gradient, whole sampling loops, and samples chosen among candidates.

    python tests/parity/make_prior.py --out DIR [--seed N] [--cases N]

One safetensors file a case, in DIR/prior. Weights are a function of the parameter's name (see `fill`), so they are not
stored. A gradient is stored as its L2 norm, two projections and eight of its entries, with the noise that float32
leaves in it. The noise of sampling loops is a wave, see `wave_noise`.
"""
import contextlib
import json
import math
import random
import warnings

warnings.filterwarnings("ignore")

import torch

import dalle2_pytorch.dalle2_pytorch as reference

from case_files import folder_and_options, write_cases
from waves import digest, fill, nudge, wave

BATCH = 3
NUDGES = range(1, 7)


def draw_config(r):
    """A valid `prior` section; every option is drawn."""
    coin = lambda p=0.5: r.random() < p
    dim = r.choice([8, 12, 16])
    schedule = r.choice(["cosine", "cosine", "linear", "quadratic", "jsd", "sigmoid"])
    timesteps = r.choice([12, 30]) if schedule in ("cosine", "jsd") else 30
    net = dict(dim=dim, depth=r.choice([1, 2, 3]), max_text_len=r.choice([1, 3, 5, 40]),
               num_timesteps=r.choice([None, timesteps]), num_time_embeds=r.choice([1, 1, 2]),
               num_image_embeds=r.choice([1, 1, 2, 3]), num_text_embeds=r.choice([1, 1, 2]),
               dim_head=r.choice([4, 8, 8, 40]), heads=r.choice([1, 2, 3]), ff_mult=r.choice([1, 2, 4]),
               norm_in=coin(0.3), norm_out=coin(0.8), final_proj=coin(0.7), normformer=coin(0.4),
               rotary_emb=coin(0.7), self_cond=coin(0.4))
    prior = dict(net=net, image_embed_dim=dim, timesteps=timesteps, sample_timesteps=r.choice([None, 2, 5, timesteps]),
                 cond_drop_prob=r.choice([0.0, 0.2]), text_cond_drop_prob=r.choice([None, 0.3]),
                 image_cond_drop_prob=r.choice([None, 0.1]), loss_type=r.choice(["l2", "l2", "l1", "huber"]),
                 predict_x_start=coin(0.6), predict_v=coin(0.3), beta_schedule=schedule,
                 condition_on_text_encodings=coin(0.7), sampling_clamp_l2norm=coin(0.4),
                 sampling_final_clamp_l2norm=coin(0.3), training_clamp_l2norm=coin(0.4),
                 init_image_embed_l2norm=coin(0.3), image_embed_scale=r.choice([None, None, 2.5]))
    eps = not prior["predict_v"] and not prior["predict_x_start"]
    if schedule == "jsd" and eps:  # its last step keeps nothing that the noise could be taken from
        prior["sample_timesteps"] = 5
    return prior


def build(config):
    arguments = {k: v for k, v in config.items() if k != "net"}
    prior = reference.DiffusionPrior(reference.DiffusionPriorNetwork(**config["net"]), **arguments)
    fill(prior.net)
    return prior


def inputs_of(config, r):
    dim = config["image_embed_dim"]
    unit = lambda t: t / t.norm(dim=-1, keepdim=True)
    t = {"image_embeds": unit(wave((BATCH, dim), 0.31)), "text_embeds": unit(wave((BATCH, dim), 0.77, 0.2))}
    if config["condition_on_text_encodings"]:
        length = r.choice([1, 2, 4, 7])
        t["text_encodings"] = wave((BATCH, length, dim), 0.5, 0.1)
        for i in range(BATCH):  # some rows are padding
            t["text_encodings"][i, r.randrange(length + 1):] = 0.0
    return t


def condition_of(t):
    return {k: t[n] for k, n in (("text_embed", "text_embeds"), ("text_encodings", "text_encodings")) if n in t}


@contextlib.contextmanager
def patched(**functions):
    """Replaces functions of torch, `random` and the reference while it lives."""
    places = {"randint": torch, "randn": torch, "randn_like": torch, "prob_mask_like": reference}
    saved = {k: getattr(places[k], k) for k in functions if k != "coin"}
    saved_coin = random.random
    for k, f in functions.items():
        if k == "coin":
            random.random = f
        else:
            setattr(places[k], k, f)
    try:
        yield
    finally:
        random.random = saved_coin
        for k, f in saved.items():
            setattr(places[k], k, f)


def train_step(prior, t, draws):
    """@return the loss and a row of digests a parameter"""
    masks = [draws["text_keep"], draws["image_keep"]]
    original = reference.prob_mask_like

    def mask(shape, prob, device):  # the pass of the self conditioning drops nothing
        drops = [1 - prior.text_cond_drop_prob, 1 - prior.image_cond_drop_prob]
        if prob == 1 and draws["self_condition"] and mask.calls < 2:
            mask.calls += 1
            return original(shape, prob, device)
        index = mask.given
        mask.given += 1
        assert prob == drops[index]
        return masks[index]

    mask.calls, mask.given = (0 if draws["self_condition"] else 2), 0
    prior.zero_grad()
    prior.train()
    with patched(randint=lambda *a, **k: draws["times"], randn_like=lambda x: draws["noise"], prob_mask_like=mask,
                 coin=lambda: 0.0 if draws["self_condition"] else 1.0):
        loss = prior(image_embed=t["image_embeds"].clone(), **condition_of(t))
    loss.backward()
    rows = [torch.from_numpy(digest(torch.zeros(1) if p.grad is None else p.grad)) for p in prior.net.parameters()]
    return loss.item(), torch.stack(rows)


def wave_noise():
    """The k-th call gives wave(shape, 0.83, 0.5 k, 1.2)."""
    count = [0]

    def noise(shape):
        count[0] += 1
        return wave(shape, 0.83, 0.5 * count[0], 1.2)

    return dict(randn=lambda *shape, **k: noise(shape[0] if isinstance(shape[0], (tuple, list)) else shape),
                randn_like=lambda x: noise(x.shape))


class Clip:
    """Stands for CLIP: a text is its row among the inputs."""

    def __init__(self, t):
        self.t = t

    def embed_text(self, text):
        encodings = self.t.get("text_encodings")
        return self.t["text_embeds"][text], None if encodings is None else encodings[text]


def sample(prior, t, s):
    prior.eval()
    with patched(**wave_noise()), torch.no_grad():
        loop = prior.p_sample_loop((BATCH, prior.image_embed_dim), text_cond=condition_of(t),
                                   cond_scale=s["cond_scale"], timesteps=s["timesteps"])
    prior.clip = Clip(t)
    with patched(**wave_noise()):
        best = prior.sample(torch.arange(BATCH), num_samples_per_batch=s["candidates"], cond_scale=s["cond_scale"])
    prior.clip = None
    return loop, best


def network_outputs(prior, t, draws, self_cond):
    prior.eval()
    arguments = dict(condition_of(t), self_cond=self_cond)
    x = wave((BATCH, prior.image_embed_dim), 0.9, 0.4, 1.5)
    with torch.no_grad():
        return {"net.out": prior.net(x, draws["times"], **arguments),
                "net.cfg": prior.net.forward_with_cond_scale(x, draws["times"], cond_scale=2.5, **arguments)}


def make_case(seed):
    """@return tensors and metadata, or None for a configuration the reference itself has no numbers for"""
    r = random.Random(seed)
    torch.manual_seed(seed)
    config = draw_config(r)
    prior = build(config)
    t = inputs_of(config, r)
    keep = lambda p: torch.rand(BATCH) >= p
    draws = {"times": torch.randint(0, config["timesteps"], (BATCH,)),
             "noise": torch.randn(BATCH, config["image_embed_dim"]), "text_keep": keep(prior.text_cond_drop_prob),
             "image_keep": keep(prior.image_cond_drop_prob),
             "self_condition": config["net"]["self_cond"] and r.random() < 0.6}
    self_cond = wave((BATCH, config["image_embed_dim"]), 0.21) if config["net"]["self_cond"] else None
    tensors = dict(t, **network_outputs(prior, t, draws, self_cond))
    guided = prior.can_classifier_guidance
    s = dict(cond_scale=r.choice([1.0, 1.7, 3.0]) if guided else 1.0, candidates=r.choice([1, 2, 4]),
             timesteps=config["sample_timesteps"])
    loss, rows = train_step(prior, t, draws)
    loop, best = sample(prior, t, s)
    loss_noise, noise, sample_noise = 0.0, torch.zeros(len(rows), dtype=torch.float64), 0.0
    # Those of the noise schedule too: a loop divides by some that are tiny.
    buffers = [buffer for buffer in prior.noise_scheduler.buffers() if buffer.is_floating_point()]
    kept = [buffer.clone() for buffer in buffers]
    for n in NUDGES:
        nudge(prior.net.parameters(), n)
        nudge(buffers, n)
        moved_loss, moved = train_step(prior, t, draws)
        moved_loop, moved_best = sample(prior, t, s)
        fill(prior.net)
        for buffer, value in zip(buffers, kept):
            buffer.copy_(value)
        loss_noise = max(loss_noise, abs(moved_loss - loss))
        noise = torch.maximum(noise, (moved - rows).abs().amax(1))
        sample_noise = max(sample_noise, (moved_loop - loop).abs().max().item(),
                           (moved_best - best).abs().max().item())
    # A loop that grows a rounding beyond ten times the tests' tolerance proves nothing, and neither does a choice
    # among candidates that are equally near.
    if 20 * sample_noise > 1e-2 * loop.abs().max().item() or not math.isfinite(loss):
        return None
    tensors.update(draws, self_condition=torch.tensor([draws["self_condition"]]), grads=rows.float(),
                   grad_noise=noise.float(), loop=loop, best=best)
    if not all(torch.isfinite(v).all() for v in tensors.values()):
        return None
    config = json.loads(json.dumps({k: v for k, v in config.items()}))
    names = list(prior.state_dict())
    return tensors, dict(seed=seed, prior=config, sampling=s, loss=loss, loss_noise=loss_noise,
                         sample_noise=sample_noise, names=names,
                         num_parameters=sum(p.numel() for p in prior.parameters()))


# What lies in the repository, by the numbers of the cases and of their draws: all options.
KEPT = {0: 0, 1: 1, 2: 2, 4: 4, 7: 7, 13: 13, 14: 14, 15: 15, 16: 16, 20: 20, 26: 27, 27: 28}


def main():
    folder, arguments = folder_and_options("prior", __doc__, cases=30, kept=KEPT)
    torch.set_num_threads(1)
    reference.tqdm = lambda x, **k: x
    write_cases(folder, make_case, arguments)


if __name__ == "__main__":
    main()
