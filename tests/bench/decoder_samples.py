#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sampling of three decoders with DDIM and guidance, ours against dalle2-pytorch's Decoder.sample, in turns on one machine.

    scripts/bench.sh sample [--only a16 b32 laion32] [--precision no bf16] [--rounds 3] [--calls 1] [--timesteps 50] [--cond-scale 3] [--threads 2]
    scripts/bench.sh sample --account a16     where the time of our call goes, and the least it could take: decoder_steps.py

The configs are those of `bench.sh step` with `predict_x_start`; the number of pictures of a call is their batch size. Both sides have the
same weights, conditions and starting noise, and their pictures are compared before a ratio is printed. A round is a call of ours, of the
reference, and of ours once
more, each in a process of its own, after a call of two timesteps that is not counted. The two calls of ours give the control. `cpu` is the
processor time of all threads, which other programs change less than `wall`; `peak` is the largest resident memory of the process.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from decoder_steps import DECODER, geomean, ratios, run, text_of
from shared import parser_of

NAMES = ("a16", "b32", "laion32")
SEED = 0
MOST_MEAN_DIFFERENCE = {"no": 1e-4, "bf16": 1e-2}


def config_of(name):
    """The config of `bench.sh step`, but the network predicts the picture. As noise, what a network of random weights predicts would make
    every pixel black or white, whatever the weights and the precision."""
    config = DECODER.config(name)
    config["decoder"]["predict_x_start"] = True
    return config


def make_decoder(name, timesteps):
    import torch
    from dalle2_pytorch import Decoder, Unet
    torch.manual_seed(SEED)
    options = config_of(name)["decoder"]
    unets = tuple(Unet(**unet) for unet in options.pop("unets"))
    decoder = Decoder(unet=unets, **options, sample_timesteps=timesteps)
    for unet in decoder.unets:  # which begin with zeros, so that nothing would be drawn
        torch.nn.init.normal_(unet.to_out.weight, std=0.02)
    return decoder


def make_inputs(name):
    """The conditions, drawn before anything else, and the noise that the reference draws first after SEED."""
    import torch
    config = config_of(name)
    unet, batch, side = config["decoder"]["unets"][0], config["data"]["batch_size"], config["decoder"]["image_size"]
    generator = torch.Generator().manual_seed(SEED)
    inputs = {"image_embed": torch.randn(batch, unet["image_embed_dim"], generator=generator)}
    if "text_embed_dim" in unet:
        inputs["text_encodings"] = torch.randn(batch, 77, unet["text_embed_dim"], generator=generator)
    torch.manual_seed(SEED)
    return inputs, torch.randn(batch, 3, side, side)


def prepare(arguments, name, folder):
    from safetensors.torch import save_file
    inputs, noise = make_inputs(name)
    weights = {f"decoder.{key}": tensor.contiguous() for key, tensor in make_decoder(name, arguments.timesteps).state_dict().items()}
    (folder / f"{name}.json").write_text(json.dumps(config_of(name)))
    save_file({**weights, **inputs, "init_noise": noise}, folder / f"{name}.safetensors")


def measure_reference(arguments):
    import torch
    from safetensors.torch import save_file
    name, folder = arguments.one_reference
    torch.set_num_threads(arguments.threads)
    inputs, _ = make_inputs(name)
    decoder = make_decoder(name, arguments.timesteps)
    wall, cpu = [], []
    for number in range(1 + arguments.calls):
        decoder.sample_timesteps = [arguments.timesteps if number > 0 else 2]
        torch.manual_seed(SEED)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        samples = decoder.sample(**inputs, cond_scale=arguments.cond_scale)
        if number > 0:
            wall.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
    save_file({"samples": samples.contiguous()}, f"{folder}/theirs.safetensors")
    print(json.dumps({"wall_ms": 1e3 * statistics.median(wall), "cpu_ms": 1e3 * statistics.median(cpu)}))


def our_command(arguments, name, folder, precision, threads):
    return [arguments.binary, "sample", f"{folder}/{name}.json", f"{folder}/{name}.safetensors", f"{folder}/ours.{precision}.safetensors",
            precision, str(arguments.timesteps), str(arguments.cond_scale), str(arguments.calls), str(threads)]


def check_samples(name, folder, precision):
    from safetensors.torch import load_file
    ours, theirs = (load_file(f"{folder}/{which}.safetensors")["samples"] for which in (f"ours.{precision}", "theirs"))
    difference = (ours - theirs).abs()
    if ours.shape != theirs.shape or difference.mean() > MOST_MEAN_DIFFERENCE[precision] or theirs.std() < 0.01:
        raise SystemExit(f"{name}, {precision}: the pictures differ by {difference.mean():.2e} in the mean, {difference.max():.2e} at most")
    return difference.mean().item(), difference.max().item()


def one_round(arguments, name, folder):
    def ours(precision="no"):
        return run(our_command(arguments, name, folder, precision, arguments.threads), arguments.threads)

    found = {"ours": ours()}
    found["theirs"] = run([sys.executable, __file__, *sys.argv[1:], "--one-reference", name, folder], arguments.threads)
    found["again"] = ours()
    found["difference"] = {"no": check_samples(name, folder, "no")}
    if "bf16" in arguments.precision:
        found["bf16"] = ours("bf16")
        found["difference"]["bf16"] = check_samples(name, folder, "bf16")
    return found


def seconds(rounds, which):
    wall, cpu = (text_of([found[which][key] / 1e3 for found in rounds]) for key in ("wall_ms", "cpu_ms"))
    return f"{wall} s a call, cpu {cpu} s, peak {rounds[-1][which]['peak_rss_mib']:.0f} MiB"


def against(rounds, which):
    """The reference's figures over those of `which`, a list for each key."""
    return {key: [found["theirs"][key] / found[which][key] for found in rounds] for key in ("wall_ms", "cpu_ms", "peak_rss_mib")}


def report(arguments, name, rounds):
    """Prints the figures of one config. @return medians of the ratios of time, processor time and memory, by precision"""
    medians = {}
    print(f"{name}: reference {seconds(rounds, 'theirs')}")
    for which, precision, label in (("ours", "no", "fp32"), ("bf16", "bf16", "bf16")):
        if which not in rounds[0]:
            continue
        ours, (mean, most) = rounds[-1][which], rounds[-1]["difference"][precision]
        print(f"{name} {label}: ours {seconds(rounds, which)}; a step has {ours['operations'] / arguments.timesteps:.0f} operations,"
              f" {ours['allocations'] / arguments.timesteps:.0f} allocations; the pictures differ by {mean:.1e} in the mean, {most:.1e} at most")
        found = against(rounds, which)
        print(f"{name} {label}: reference / ours (min / median / max): wall {text_of(found['wall_ms'])}, cpu {text_of(found['cpu_ms'])},"
              f" peak {text_of(found['peak_rss_mib'])}", flush=True)
        medians[precision] = {key: statistics.median(values) for key, values in found.items()}
    print(f"{name} fp32: control / ours (min / median / max): wall {text_of(ratios(rounds, 'again', 'wall_ms'))},"
          f" cpu {text_of(ratios(rounds, 'again', 'cpu_ms'))}", flush=True)
    return medians


def main():
    parser = parser_of(__doc__, "bench_step", rounds=3, threads=2)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--precision", nargs="+", choices=("no", "bf16"), default=["no", "bf16"], help="float32 is always measured")
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--timesteps", type=int, default=50)
    parser.add_argument("--cond-scale", type=float, default=3)
    parser.add_argument("--account", choices=NAMES)
    parser.add_argument("--one-reference", nargs=2, help=argparse.SUPPRESS)  # config and folder
    arguments = parser.parse_args()
    if arguments.one_reference:
        return measure_reference(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for name in [arguments.account] if arguments.account else arguments.only:
            prepare(arguments, name, pathlib.Path(folder))
        if arguments.account:
            command = [*our_command(arguments, arguments.account, folder, arguments.precision[0], 1), "account"]
            status = os.spawnve(os.P_WAIT, command[0], command, {**os.environ, "OMP_NUM_THREADS": "1"})
            return status
        medians = [report(arguments, name, [one_round(arguments, name, folder) for _ in range(arguments.rounds)]) for name in arguments.only]
    for precision, label in (("bf16", ".bf16"), ("no", "")):
        for key, suffix in (("peak_rss_mib", ".memory"), ("cpu_ms", ".cpu"), ("wall_ms", "")):
            if precision in medians[0]:
                print(f"figure sample.ddim{arguments.timesteps}{label}{suffix} = {geomean([row[precision][key] for row in medians]):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
