# SPDX-License-Identifier: MIT
"""Runs of dalle2_pytorch's DiffusionPriorTrainer on a tiny prior, everything random recorded: losses, rates, weights,
averages, samples, and the checkpoints it writes in the middle.

    python make_prior_trainer.py --out fixtures [--seed 0]      writes fixtures/prior_trainer/{adamw,adam}.*

check_with_reference.py imports this file for its trainer and its way to play a run.
"""
import random
import warnings

warnings.filterwarnings("ignore")

import torch

import dalle2_pytorch.dalle2_pytorch as D
import make_prior
from dalle2_pytorch.trainer import DiffusionPriorTrainer

from case_files import folder_and_options, write_case
from make_trainer import compact, fed, keep

DIM, BATCH, TEXTS = 8, 5, 3
PRIOR = {"net": {"dim": DIM, "depth": 2, "dim_head": 4, "heads": 2, "max_text_len": 4, "ff_mult": 1,
                 "normformer": True},
         "image_embed_dim": DIM, "timesteps": 20, "sample_timesteps": 4, "cond_drop_prob": 0.2}


def event(update=True, max_batch_size=None):
    return dict(update=update, max_batch_size=max_batch_size)


# The two forwards without an update between them add up their gradients; five samples in chunks of two end in one.
RUNS = {
    "adamw": dict(train={"lr": 1e-3, "wd": 0.0602, "max_grad_norm": 0.5, "warmup_steps": 3,
                         "cosine_decay_max_steps": 20, "ema_beta": 0.9, "ema_update_after_step": 2,
                         "ema_update_every": 2},
                  save_behind=6,
                  events=[event(), event(), event(max_batch_size=2), event(), event(update=False), event(),
                          event(max_batch_size=1), event(), event(max_batch_size=3), event(), event()]),
    # Nothing is set but the rate: eps and the averages are what the class has.
    "adam": dict(train={"lr": 3e-4, "wd": 0.0, "max_grad_norm": None}, save_behind=1, events=[event()] * 4),
}


def make_trainer(train):
    prior = make_prior.build(PRIOR)
    return DiffusionPriorTrainer(prior, **train)


def recorded(draws):
    """Appends all that a forward pass draws to `draws`, a dict of lists."""
    originals = dict(randint=torch.randint, randn_like=torch.randn_like, prob_mask_like=D.prob_mask_like)
    return make_prior.patched(**{name: keep(draws, name, function) for name, function in originals.items()})


def given(inputs, max_batch_size):
    return fed(inputs, max_batch_size or BATCH, ("text_keep", "image_keep"))


def loss_of(trainer, inputs, max_batch_size):
    """The reference scales image embeddings in place: it gets copies."""
    return trainer(text_embed=inputs["text_embeds"], image_embed=inputs["image_embeds"].clone(),
                   text_encodings=inputs["text_encodings"], max_batch_size=max_batch_size)


def draw_inputs():
    unit = lambda t: t / t.norm(dim=-1, keepdim=True)
    encodings = torch.randn(BATCH, 3, DIM)
    encodings[1, 2:] = 0.0
    return {"image_embeds": unit(torch.randn(BATCH, DIM)), "text_embeds": unit(torch.randn(BATCH, DIM)),
            "text_encodings": encodings}


def samples(trainer, inputs):
    """p_sample_loop by the trainer, whose weights are the averages, and by the live prior."""
    text = {k: inputs[f"{k}s"][:TEXTS] for k in ("text_embed", "text_encoding")}
    t = {"text_embeds": text["text_embed"], "text_encodings": text["text_encoding"]}
    condition = make_prior.condition_of(t)
    for prior in (trainer.diffusion_prior, trainer.ema_diffusion_prior.ema_model):
        prior.eval()
    with make_prior.patched(**make_prior.wave_noise()):
        loop = trainer.p_sample_loop((TEXTS, DIM), text_cond=condition, timesteps=5)
    with make_prior.patched(**make_prior.wave_noise()):
        live_loop = trainer.diffusion_prior.p_sample_loop((TEXTS, DIM), text_cond=condition, timesteps=5)
    return {"sample.loop": loop, "sample.live_loop": live_loop}


def norm_of_gradients(trainer):
    return torch.stack([p.grad.norm() for p in trainer.diffusion_prior.parameters() if p.grad is not None]).norm().item()


def add_noise(name, seed, log, inputs):
    """Plays the run again from weights that are rounded otherwise in their last bit, and adds to each event how far its loss
    and norm are from where they were, at most, in four such runs: no other implementation can be nearer."""
    for entry in log:
        entry.update({f"{key}_noise": 0.0 for key in ("loss", "grad_norm") if key in entry})
    for nudge in range(4):
        torch.manual_seed(seed)
        trainer = make_trainer(RUNS[name]["train"])
        torch.manual_seed(seed + 1 + nudge)
        with torch.no_grad():
            for p in trainer.diffusion_prior.parameters():
                p.mul_(1 + torch.finfo(p.dtype).eps * torch.randint(-1, 2, p.shape))
        for entry, given_inputs in zip(log, inputs):
            with given(given_inputs, entry["max_batch_size"]):
                loss = loss_of(trainer, given_inputs, entry["max_batch_size"])
            entry["loss_noise"] = max(entry["loss_noise"], abs(loss - entry["loss"]))
            if entry["update"]:
                norm = norm_of_gradients(trainer)
                entry["grad_norm_noise"] = max(entry["grad_norm_noise"], abs(norm - entry["grad_norm"]))
                trainer.update()


def play(folder, name, seed):
    run = RUNS[name]
    torch.manual_seed(seed)
    random.seed(seed)
    trainer = make_trainer(run["train"])
    tensors, log, inputs, all_inputs = {}, [], None, []
    for i, e in enumerate(run["events"]):
        inputs, draws = draw_inputs(), {}
        with recorded(draws):
            loss = loss_of(trainer, inputs, e["max_batch_size"])
        inputs.update(times=torch.cat(draws["randint"]), noise=torch.cat(draws["randn_like"]),
                      text_keep=torch.cat(draws["prob_mask_like"][0::2]),
                      image_keep=torch.cat(draws["prob_mask_like"][1::2]))
        tensors.update({f"{i}.{k}": v for k, v in inputs.items()})
        all_inputs.append(inputs)
        entry = dict(e, loss=loss)
        if e["update"]:
            entry["lr"] = trainer.optimizer.param_groups[0]["lr"]
            entry["grad_norm"] = norm_of_gradients(trainer)
            trainer.update()
        log.append(entry)
        if i == run["save_behind"]:
            trainer.save(folder / f"{name}.pth", epoch=2, samples_seen=42, best_validation_loss=0.5)
    tensors.update(compact(trainer.diffusion_prior.net.state_dict(), "final."))
    tensors.update(compact(trainer.ema_diffusion_prior.ema_model.net.state_dict(), "ema."))
    tensors.update(samples(trainer, inputs))
    add_noise(name, seed, log, all_inputs)
    group, ema = trainer.optimizer.param_groups[0], trainer.ema_diffusion_prior
    settings = dict(optimizer=type(trainer.optimizer.optimizer).__name__, eps=group["eps"], betas=group["betas"],
                    ema_beta=ema.beta, ema_update_after_step=ema.update_after_step, ema_update_every=ema.update_every)
    meta = dict(prior=PRIOR, train=run["train"], events=log, save_behind=run["save_behind"], settings=settings,
                step=trainer.step.item(), texts=TEXTS)
    write_case(folder, name, tensors, meta)
    (folder / f"{name}.pth").chmod(0o644)


def main():
    folder, arguments = folder_and_options("prior_trainer", __doc__)
    torch.set_num_threads(1)
    D.tqdm = lambda x, **k: x
    for name in RUNS:
        play(folder, name, arguments.seed)


if __name__ == "__main__":
    main()
