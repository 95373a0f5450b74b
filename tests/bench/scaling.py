#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Several GPUs on paper: how long a step of a large decoder waits for gradients, by a simulation of its backward pass.

    python tests/bench/scaling.py [--batch 32 128] [--gpus 8 64 512] [--bucket-mebibytes 1 5 25 100 400] [--utilisation 0.4]

Needs a Python with the reference (scripts/reference_python.sh), which counts parameters and operations of the network on
torch's meta device; no weights and no GPU. What is assumed of machines stands in the constants below. docs/scaling.md says
what follows.
"""
import argparse
import collections
import math
import warnings

warnings.filterwarnings("ignore")

# Data sheet of the H200 SXM: dense bfloat16. Nodes of eight.
PEAK_FLOPS = 989e12
GPUS_A_NODE = 8
# Of what NCCL's own tests show as bus bandwidth on such nodes: NVLink 4 (450 GB/s one way), one 400 Gbit/s adapter a GPU.
NVLINK_BYTES_PER_SECOND, NETWORK_BYTES_PER_SECOND = 370e9, 45e9
# Of a collective, for each hop of a tree.
NVLINK_SECONDS, NETWORK_SECONDS = 4e-6, 15e-6
START_SECONDS = 8e-6  # to launch one
BUCKET_MEBIBYTES = 100  # for train.shard_optimizer
HOST_COPY_BYTES_PER_SECOND = 50e9  # PCIe 5, page-locked
# 419 unexpected interruptions of 16,384 GPUs in 54 days (Llama Team 2024, arXiv 2407.21783, section 3.3.4).
GPU_SECONDS_BETWEEN_FAILURES = 54 * 86400 * 16384 / 419

# The base stage of the decoder that LAION published for 64 pixels.
UNET = dict(dim=320, cond_dim=512, image_embed_dim=768, text_embed_dim=768, cond_on_text_encodings=True, channels=3,
            dim_mults=(1, 2, 3, 4), num_resnet_blocks=4, attn_heads=8, attn_dim_head=64, memory_efficient=True)
SIDE, TEXT_TOKENS = 64, 77

Layer = collections.namedtuple("Layer", "parameters flops")  # flops of the forward pass of one sample


def layers_of_network():
    """Modules with parameters of their own, in the order in which a forward pass ends them."""
    import torch
    from dalle2_pytorch import Unet
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        unet = Unet(**UNET)
    order, flops = [], collections.Counter()

    counter = FlopCounterMode(display=False)

    def before(module, _):
        flops[module] -= counter.get_total_flops()

    def after(module, _, __):
        flops[module] += counter.get_total_flops()
        if module not in order:
            order.append(module)

    for module in unet.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)
    meta = dict(device="meta")
    with counter:
        unet(torch.empty(1, 3, SIDE, SIDE, **meta), torch.empty(1, **meta), image_embed=torch.empty(1, 768, **meta),
             text_encodings=torch.empty(1, TEXT_TOKENS, 768, **meta))
    whole = counter.get_total_flops()
    layers = [Layer(sum(p.numel() for p in module.parameters(recurse=False)), max(flops[module], 0)) for module in order]
    # What no such module does (products of attention) is spread over all.
    rest = (whole - sum(layer.flops for layer in layers)) / max(sum(layer.flops for layer in layers), 1)
    layers = [Layer(layer.parameters, layer.flops * (1 + rest)) for layer in layers]
    return layers, sum(p.numel() for p in unet.parameters()), whole


def all_reduce_seconds(size, gpus):
    """Of `size` bytes: reduced within nodes, among nodes, and back; a ring's bytes and a tree's hops."""
    local = min(gpus, GPUS_A_NODE)
    nodes = max(1, gpus // GPUS_A_NODE)
    seconds = START_SECONDS
    if local > 1:
        seconds += 2 * (local - 1) / local * size / NVLINK_BYTES_PER_SECOND + 2 * math.log2(local) * NVLINK_SECONDS
    if nodes > 1:  # every GPU of a node carries its share over its own adapter
        seconds += 2 * (nodes - 1) / nodes * size / local / NETWORK_BYTES_PER_SECOND + 2 * math.log2(nodes) * NETWORK_SECONDS
    return seconds


def reduce_seconds(size, gpus, whole):
    """Of `size` bytes of `whole`, to the owners of the slices in it: half the bytes of a sum for all, a call for each slice.

    As trained_part.cpp: with more than four owners a bucket, a sum for all.
    """
    calls = max(1, math.ceil(size / (whole / gpus)))
    if calls > 4:
        return all_reduce_seconds(size, gpus)
    return all_reduce_seconds(size, gpus) / 2 + (calls - 1) * all_reduce_seconds(0, gpus) / 2


def buckets_of(layers, bucket_bytes, bytes_a_value):
    """(bytes, index of the last layer in it) in the order of the backward pass."""
    buckets, size = [], 0
    for index in range(len(layers) - 1, -1, -1):
        size += layers[index].parameters * bytes_a_value
        if size >= bucket_bytes or index == 0:
            buckets.append((size, index))
            size = 0
    return buckets


def simulate(layers, seconds_a_flop, buckets, seconds_of):
    """A pass forward and back; each bucket goes when its layers are done and the one before it is through.

    Returns seconds of computing, of all collectives (`seconds_of` their bytes), and those that the backward pass does not cover.
    """
    now, ends = sum(layer.flops for layer in layers) * seconds_a_flop, {}
    for index in range(len(layers) - 1, -1, -1):
        now += 2 * layers[index].flops * seconds_a_flop  # of weights and of inputs
        ends[index] = now
    computed, network_free, total = now, 0.0, 0.0
    for size, last in buckets:
        seconds = seconds_of(size)
        network_free = max(network_free, ends[last]) + seconds
        total += seconds
    return computed, total, max(0.0, network_free - computed)


def step(layers, utilisation, batch, gpus, bucket_mebibytes, bytes_a_value):
    return simulate(layers, batch / (PEAK_FLOPS * utilisation), buckets_of(layers, bucket_mebibytes * 2**20, bytes_a_value),
                    lambda size: all_reduce_seconds(size, gpus))


def table(title, head, rows):
    print(f"\n{title}\n")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 128], help="samples a GPU and step")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--bucket-mebibytes", type=float, nargs="+", default=[1, 5, 25, 100, 400])
    parser.add_argument("--utilisation", type=float, default=0.4, help="share of the data sheet's operations that is reached")
    args = parser.parse_args()
    layers, parameters, flops = layers_of_network()
    print(f"{parameters / 1e6:.0f} million parameters, {flops / 1e9:.0f} GFLOP a sample and forward pass")

    for batch in args.batch:
        rows = []
        for gpus in args.gpus:
            for bucket in args.bucket_mebibytes:
                computed, total, exposed = step(layers, args.utilisation, batch, gpus, bucket, 4)
                _, half_total, half_exposed = step(layers, args.utilisation, batch, gpus, bucket, 2)
                rows.append([str(gpus), f"{bucket:g}", f"{total * 1e3:.1f}", f"{exposed * 1e3:.1f}",
                             f"{100 * computed / (computed + exposed):.0f} %", f"{half_total * 1e3:.1f}", f"{half_exposed * 1e3:.1f}",
                             f"{100 * computed / (computed + half_exposed):.0f} %"])
        table(f"Gradients, {batch} samples a GPU: {computed * 1e3:.0f} ms of computing a step",
              ["GPUs", "bucket, MiB", "sent in, ms", "not covered, ms", "efficiency", "bf16: sent in, ms", "not covered, ms",
               "efficiency"], rows)

    rows = []
    batch = max(args.batch)
    for gpus in args.gpus:
        weights = 4 * parameters
        # Gradients go to the owners of the slices, then the weights of all slices to all: each half of an all-reduce. Of what
        # comes back nothing is covered.
        share = all_reduce_seconds(weights, gpus) / 2
        computed, _, summed = step(layers, args.utilisation, batch, gpus, BUCKET_MEBIBYTES, 4)
        _, _, reduced = simulate(layers, batch / (PEAK_FLOPS * args.utilisation), buckets_of(layers, BUCKET_MEBIBYTES * 2**20, 4),
                                 lambda size: reduce_seconds(size, gpus, weights))
        rows.append([str(gpus), f"{5 * weights / 2**30:.1f}", f"{(2 + 3 / gpus) * weights / 2**30:.1f}", f"{share * 1e3:.1f}",
                     f"{100 * computed / (computed + summed):.0f} %", f"{100 * computed / (computed + reduced + share):.0f} %"])
    table(f"train.shard_optimizer, {batch} samples a GPU, parts of {BUCKET_MEBIBYTES} MiB",
          ["GPUs", "without, GiB a GPU", "with, GiB a GPU", "collecting weights, ms a step", "efficiency without", "with"], rows)

    rows = []
    for gpus in args.gpus:
        between = GPU_SECONDS_BETWEEN_FAILURES / gpus
        # Weights, moments, averages go to host memory; the file is written meanwhile.
        held_up = 4 * parameters * 4 / HOST_COPY_BYTES_PER_SECOND
        interval = math.sqrt(2 * held_up * between)
        rows.append([str(gpus), f"{between / 3600:.0f}", f"{held_up:.2f}", f"{interval / 60:.0f}",
                     f"{100 * (held_up / interval + interval / 2 / between):.3f} %"])
    table("Checkpoints (Young 1974, Daly 2006)", ["GPUs", "hours between failures", "a save holds up, s", "best interval, min",
                                                 "time lost"], rows)


if __name__ == "__main__":
    main()
