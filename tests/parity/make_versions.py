# SPDX-License-Identifier: MIT
"""Decoders and priors of old versions of dalle2-pytorch, run by those versions: outputs, losses, samples.

    python tests/parity/make_versions.py [--seed N] [--out FOLDER] [--all] [--versions V ...] [--wheels FOLDER]

Each version is installed from PyPI into a folder of its own (without dependencies: the environment's serve, and
einops-exts). One file a version and kind: decoder_1.1.0.safetensors. Weights are a function of the parameter's name
(see `fill`), so they are not stored; noise is a function of the number of the draw.
"""
import inspect
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")

# One of each class of networks and loops at least.
DECODERS = "0.14.1 0.15.1 0.15.4 0.16.0 0.19.6 0.22.3 0.23.10 0.24.0 1.1.0 1.2.2 1.4.2 1.6.5 1.10.3 1.12.4".split()
PRIORS = "0.15.4 0.16.0 0.16.1 0.19.6 0.22.3 0.23.2 0.25.2 1.1.0 1.6.5 1.9.0 1.10.7 1.10.9 1.12.4".split()
# What lies in the repository.
SMALL = {"decoder": ["0.15.4", "1.1.0"], "prior": ["0.15.4", "1.1.0"]}
BATCH, STEPS = 2, 4
# A decoder's: with fewer, a linear schedule ends in NaN; with more, rounding grows from step to step.
TIMESTEPS = {"decoder": 24, "prior": 64}
# Parts of the largest value by which one rounding of every weight may move a result: half of what the test allows. Beside
# it, how many nudges are tried: the values of an output are many, but a loss is one, and guidance with a threshold or
# self-conditioning makes some loops multiply a rounding by 1e5, along one direction that a single nudge can miss.
STEADY = {"output": (5e-6, 4), "loss": (5e-6, 4), "sample": (1e-4, 4), "training": (5e-5, 4)}
UPDATES = 10  # of training on; eps keeps rounding noise of a small gradient from becoming a step of its own
ADAM = dict(lr=1e-3, betas=(0.9, 0.99), eps=1e-3)
NEVER = 1e-12  # a probability of dropping that allows guidance and never happens


def number(version):
    return tuple(map(int, version.split(".")))


def names_fnv1a(module):
    """Names and shapes of the state dict in their order, as one number."""
    value = 0xCBF29CE484222325
    for byte in "".join(f"{n} {','.join(map(str, t.shape))}\n" for n, t in module.state_dict().items()).encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def install(version, wheels):
    for name, package in ((version, f"dalle2-pytorch=={version}"), ("extras", "einops-exts")):
        if not (wheels / name).is_dir():
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", wheels / name, package], check=True)


def draw_decoder(rng, v):
    """A decoder section: two unets, the first with all conditions."""
    coin = lambda p=0.5: rng.random() < p
    efficient, wide = coin(0.4), rng.choice([1, 2])
    unet = dict(dim=8, dim_mults=[1, 2], cond_dim=10, attn_dim_head=4, attn_heads=2, resnet_groups=4,
                num_resnet_blocks=rng.choice([1, 2]), memory_efficient=efficient, sparse_attn=coin(0.7),
                scale_skip_connection=coin(0.3), num_time_tokens=wide)
    if v >= (0, 24, 3):  # always before, and the key was ignored
        unet.update(init_cross_embed=coin(), init_conv_kernel_size=7)
    if v >= (0, 15, 3):
        unet["self_attn"] = [coin(), coin()]
    if (0, 15, 0) <= v < (0, 21, 0):
        unet["nearest_upsample"] = coin(0.3)
    if v >= (1, 4, 0):
        unet["cosine_sim_cross_attn"] = coin(0.3)
    if v >= (1, 4, 3):
        unet["cosine_sim_self_attn"] = coin(0.3)
    if v >= (1, 1, 0):
        unet["combine_upsample_fmaps"] = coin(0.3)
    first = dict(unet, image_embed_dim=12, cond_on_text_encodings=True, text_embed_dim=5, max_text_len=4)
    return dict(unets=[first, dict(unet, sparse_attn=coin(0.7))], image_sizes=[8, 16], timesteps=TIMESTEPS["decoder"],
                learned_variance=coin(), predict_x_start=coin(), use_dynamic_thres=coin(0.3),
                image_cond_drop_prob=NEVER, text_cond_drop_prob=NEVER)


def draw_prior(rng, v):
    coin = lambda p=0.5: rng.random() < p
    net = dict(dim=16, depth=2, dim_head=8, heads=2, num_timesteps=TIMESTEPS["prior"] if coin(0.6) else None,
               num_time_embeds=rng.choice([1, 2]), num_image_embeds=rng.choice([1, 2]), num_text_embeds=rng.choice([1, 2]),
               normformer=coin(), rotary_emb=coin(0.7), norm_out=coin(0.7), final_proj=coin())
    if v >= (0, 23, 0):
        net["max_text_len"] = 5
    if v >= (0, 23, 2):
        net["norm_in"] = coin()
    if v >= (1, 6, 2):
        net["self_cond"] = coin()
    prior = dict(net=net, image_embed_dim=16, timesteps=TIMESTEPS["prior"], cond_drop_prob=NEVER, predict_x_start=coin(0.6),
                 sampling_clamp_l2norm=coin(0.3))
    return prior


class Unsteady(Exception):
    """A nudge moves a result too far."""


def worker(kind, version, seed, out):
    """Runs in a process of its own, whose dalle2_pytorch is that version."""
    try:
        make_case(kind, version, seed, out)
    except Unsteady:
        worker(kind, version, f"{seed}+", out)  # another draw


def make_case(kind, version, seed, out):
    import torch
    import dalle2_pytorch.dalle2_pytorch as old
    from case_files import write_case
    from waves import fill, nudge, wave

    torch.set_num_threads(1)
    v = number(version)
    rng = random.Random(f"{seed} {kind} {version}")
    draws = 0
    tensors = {}

    def normal(shape, *rest, **options):
        nonlocal draws
        draws += 1
        shape = tuple(shape) if not isinstance(shape, int) else (shape, *rest)
        return wave(shape, 0.83, 0.5 * draws, 1.2)

    class Patched:
        """The random numbers of a call, beginning with the first. Its masks are its own."""

        def __enter__(self):
            nonlocal draws
            draws = 0
            self.kept = torch.randn, torch.randn_like, torch.randint, random.random, torch.where
            where = torch.where
            # A prior of 0.23.2 changes its mask in place, which its backward pass needs: it cannot be trained as it is.
            torch.where = lambda condition, *values: where(condition.clone(), *values)
            torch.randn, torch.randn_like = normal, lambda like, **_: normal(like.shape)
            torch.randint = lambda *_, **__: times.clone()
            random.random = lambda: 0.0 if kind == "decoder" else 1.0  # blurs; shows no estimate

        def __exit__(self, *_):
            torch.randn, torch.randn_like, torch.randint, random.random, torch.where = self.kept

    def steady(what, result_of):
        """result_of(0), which is that of result_of(nudged) too."""
        exact = result_of(0)
        part, nudges = STEADY[what]
        most = part * exact.abs().max()
        if not all((result_of(nudged) - exact).abs().max() <= most for nudged in range(1, 1 + nudges)):  # nor NaN
            raise Unsteady
        return exact

    def losses_of_training(network, loss_of):
        """[UPDATES] float32"""
        optimizer = torch.optim.Adam(network.parameters(), **ADAM)
        losses = []
        for _ in range(UPDATES):
            optimizer.zero_grad()
            with Patched(), torch.enable_grad():
                loss = loss_of()
                loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    times = torch.tensor([rng.randrange(1, TIMESTEPS[kind]), rng.randrange(TIMESTEPS[kind])])
    ddim = v >= ((0, 19, 3) if kind == "decoder" else (0, 19, 5))
    tensors["times"] = times

    if kind == "decoder":
        section = draw_decoder(rng, v)
        arguments = {key: value for key, value in section.items() if key != "unets"}
        arguments["image_sizes"] = tuple(section["image_sizes"])
        if v < (1, 0, 3):
            arguments["beta_schedule"] = ("cosine", "cosine")  # the default of configs, not of the class

        def decoder_of(nudged=0, **more):
            unets = [old.Unet(**{k: tuple(x) if isinstance(x, list) else x for k, x in unet.items()}) for unet in section["unets"]]
            decoder = old.Decoder(tuple(unets), **arguments, **more)
            for unet in decoder.unets:
                fill(unet)
                if nudged:
                    nudge(unet.parameters(), nudged)
            return decoder.eval()

        decoder = decoder_of()
        embed, encodings = wave((BATCH, 12), 0.9, 0.3), wave((BATCH, 4, 5), 0.5, 0.1)
        encodings[1, 2:] = 0
        mask = (encodings != 0).any(dim=-1)
        masked = lambda f: {"text_mask": mask.clone()} if "text_mask" in inspect.signature(f).parameters else {}
        images = wave((BATCH, 3, 16, 16), 0.05, 0.3, 0.5, 0.5)
        with torch.no_grad():
            for i, unet in enumerate(decoder.unets):
                side = section["image_sizes"][i]
                given = dict(image_embed=embed, text_encodings=encodings) if i == 0 else \
                    dict(image_embed=embed, lowres_cond_img=wave((BATCH, 3, side, side), 0.21, 0.4))
                if i == 0:
                    given.update(masked(old.Unet.forward))
                for scale in (1.0, 2.0):
                    tensors[f"unet{i + 1}.output{scale:.0f}"] = steady("output", lambda nudged: decoder_of(nudged).unets[i].forward_with_cond_scale(
                        wave((BATCH, 3, side, side), 0.17, 0.2), times, cond_scale=scale, **given))

                def loss_of(nudged):
                    moved = decoder_of(nudged).train()
                    with Patched():
                        return moved(images, image_embed=embed, text_encodings=encodings, unet_number=i + 1,
                                     **masked(old.Decoder.forward))

                tensors[f"unet{i + 1}.loss"] = steady("loss", loss_of)
            for name, steps in [("ddpm", None)] + ([("ddim", STEPS)] if ddim else []):
                def sample_of(nudged):
                    sampler = decoder_of(nudged, **({"sample_timesteps": (steps, steps)} if steps else {}))
                    with Patched():  # `sample` is wrapped, and takes a mask where `forward` does
                        return sampler.sample(image_embed=embed, text_encodings=encodings, cond_scale=2.0, **masked(old.Decoder.forward))

                tensors[f"sample.{name}"] = steady("sample", sample_of)

        def training_of(nudged):
            moved = decoder_of(nudged).train()
            return losses_of_training(moved.unets[0], lambda: moved(
                images, image_embed=embed, text_encodings=encodings, unet_number=1, **masked(old.Decoder.forward)))

        tensors["training.losses"] = steady("training", training_of)
    else:
        section = draw_prior(rng, v)
        arguments = {key: value for key, value in section.items() if key != "net"}

        def prior_of(nudged=0):
            net = old.DiffusionPriorNetwork(**section["net"])
            fill(net)
            if nudged:
                nudge(net.parameters(), nudged)
            return old.DiffusionPrior(net, **arguments, **({"image_size": 16} if v < (0, 20, 0) else {})).eval()

        prior = prior_of()
        image, text, encodings = wave((BATCH, 16), 0.31), wave((BATCH, 16), 0.77, 0.2), wave((BATCH, 5, 16), 0.5, 0.1)
        # In 0.16.2 to 0.22.3 a row of zeros is NaN. Where a mask can be given it is not of zeros.
        padded = not (0, 22, 0) <= v < (0, 23, 0)
        if padded and v >= (0, 22, 0):
            encodings[0, 3:] = 0
        mask = torch.ones((BATCH, 5), dtype=torch.bool)
        if padded:
            mask[0, 3:] = False

        def conditions():
            given = dict(text_embed=text, text_encodings=encodings)
            return dict(given, mask=mask.clone()) if v < (0, 22, 0) else given

        with torch.no_grad():
            for scale in (1.0, 2.0):
                tensors[f"output{scale:.0f}"] = steady(
                    "output", lambda nudged: prior_of(nudged).net.forward_with_cond_scale(image, times, cond_scale=scale, **conditions()))
            scaled = image * prior.image_embed_scale
            noise = wave((BATCH, 16), 0.83, 0.5, 1.2)

            def loss_of(nudged):
                moved = prior_of(nudged)
                with Patched():
                    return moved.p_losses(scaled, times, conditions(), noise=noise)

            tensors["loss"] = steady("loss", loss_of)
            # Guidance spoils the mask after its first step where one is given (docs/parity.md).
            guidance = 1.0 if v < (0, 22, 0) else 2.0
            for name, steps in [("ddpm", None)] + ([("ddim", STEPS)] if ddim else []):
                if not section["predict_x_start"] and name == "ddim" and (1, 10, 5) <= v < (1, 11, 2):
                    continue  # cannot be walked in these versions

                def sample_of(nudged):
                    moved = prior_of(nudged)
                    with Patched():
                        return moved.p_sample_loop((BATCH, 16), text_cond=conditions(), cond_scale=guidance,
                                                   **({"timesteps": steps} if steps else {}))

                sample = steady("sample", sample_of)
                tensors[f"sample.{name}"] = sample / prior.image_embed_scale if v < (1, 6, 5) else sample

        def training_of(nudged):
            moved = prior_of(nudged).train()
            return losses_of_training(moved.net, lambda: moved.p_losses(scaled, times, conditions(), noise=noise))

        tensors["training.losses"] = steady("training", training_of)
        write_case(pathlib.Path(out), f"prior_{version}", tensors,
                   {"written_by": version, "prior": section, "padded": padded, "guidance": guidance,
                    "names_fnv1a": [names_fnv1a(prior.net)]})
        return
    write_case(pathlib.Path(out), f"decoder_{version}", tensors, {"written_by": version, "decoder": section, "names_fnv1a": list(map(names_fnv1a, decoder.unets))})


def main():
    import argparse

    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=here / "fixtures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="every version, not only those that lie in the repository")
    parser.add_argument("--wheels", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "dalle2_pytorch_versions")
    parser.add_argument("--versions", nargs="*")
    options = parser.parse_args()
    folder = options.out / "versions"
    folder.mkdir(parents=True, exist_ok=True)
    options.wheels.mkdir(parents=True, exist_ok=True)
    chosen = {"decoder": DECODERS, "prior": PRIORS} if options.all or options.versions else SMALL
    for kind, versions in chosen.items():
        for version in versions if not options.versions else [v for v in options.versions if v in versions]:
            install(version, options.wheels)
            path = [str(options.wheels / version), str(options.wheels / "extras"), str(here)]
            call = f"import sys; sys.path[:0] = {path!r}; import make_versions; " \
                   f"make_versions.worker({kind!r}, {version!r}, {options.seed}, {str(folder)!r})"
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", call], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            print(f"{kind} {version}: {'ok' if done.returncode == 0 else done.stderr[-1500:]}", flush=True)
            if done.returncode:
                sys.exit(1)


if __name__ == "__main__":
    main()
