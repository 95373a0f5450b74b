#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A CLIP, ours against open_clip, in turns on one machine: training steps, and embedding a data set.

    scripts/bench.sh clip [--binary build/bin/dalle2-train] [--only train|embed] [--rounds 5] [--steps 25] [--pictures 1500] [--threads 2]
        [--width 192] [--layers 6] [--batch 64] [--side 128] [--patch 16]

`train`: both train the same towers, with AdamW, on the same demo pictures. Ours is timed whole (loading, tokens, step, log); open_clip's step
on tensors in memory, its texts padded to 77 tokens as its tokenizer gives them. A figure is the median over the steps of a run, the first
five left out, with the largest resident memory of the process.

`embed`: `shards embed` against the way of clip-retrieval: webdataset, Pillow and torchvision in a DataLoader with a worker a thread, then
open_clip's encode_image and encode_text, and .npy files. Both read the same JPEG pictures of 256 pixels and their captions, with the same
weights; the embeddings are compared before anything is timed. A figure is that of the whole process, its start left out for both: the time
for all pictures less that for a quarter of them.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from decoder_step import peak_mib
from shared import compared, make_demo, parser_of, report, tracker

SKIPPED = 5
CONTEXT, VOCABULARY = 77, 540


def towers(arguments):
    """In open_clip's keys."""
    return {"embed_dim": 256,
            "vision_cfg": {"layers": arguments.layers, "width": arguments.width, "head_width": 64, "patch_size": arguments.patch,
                           "image_size": arguments.side},
            "text_cfg": {"context_length": CONTEXT, "width": arguments.width, "heads": arguments.width // 64, "layers": arguments.layers,
                         "vocab_size": VOCABULARY}}


def write_config(arguments, folder, steps):
    shards = len(list((folder / "shards").glob("[0-9]*.tar")))
    config = {
        "clip": {**towers(arguments), "tokenizer": {"train": VOCABULARY}},
        "data": {"webdataset_base_url": f"{folder}/shards/{{}}.tar", "end_shard": shards - 1, "batch_size": arguments.batch,
                 "num_workers": 1, "splits": {"train": 0.8, "val": 0.1, "test": 0.1},
                 "preprocessing": {"Resize": {"size": arguments.side}, "CenterCrop": {"size": arguments.side}, "ToTensor": True}},
        "train": {"epochs": 1, "epoch_samples": steps * arguments.batch, "validation_samples": 1, "lr": 5e-4, "device": "cpu",
                  "log_every_n_updates": 1},
        "tracker": tracker(folder, "clip.pth")}
    (folder / "config.json").write_text(json.dumps(config))


def environment(arguments):
    return {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}


def train(arguments, folder):
    """@return MiB"""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "clip.pth").unlink(missing_ok=True)
    return peak_mib([arguments.binary, "--config", folder / "config.json", "--quiet"], cwd=folder, stdout=subprocess.DEVNULL,
                    env=environment(arguments))[0]


def our_steps(arguments, folder):
    """@return seconds a step, MiB"""
    peak = train(arguments, folder)
    records = map(json.loads, (folder / "out/log.jsonl").read_text().splitlines())
    rates = [record["Samples per second"] for record in records if "Samples per second" in record]
    return arguments.batch / statistics.median(rates[SKIPPED:]), peak


def their_steps(arguments):
    """@return seconds of each step"""
    import open_clip
    import torch
    from open_clip.loss import ClipLoss
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    model = open_clip.CLIP(**towers(arguments))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
    loss_of = ClipLoss()
    images = torch.rand(arguments.batch, 3, arguments.side, arguments.side)
    texts = torch.zeros(arguments.batch, CONTEXT, dtype=torch.long)
    texts[:, :14] = torch.randint(1, VOCABULARY - 2, (arguments.batch, 14))
    texts[:, 0], texts[:, 14] = VOCABULARY - 2, VOCABULARY - 1
    times = []
    for _ in range(arguments.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        image_features, text_features, scale = model(images, texts)
        loss = loss_of(image_features, text_features, scale)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6052)
        loss.item()
        times.append(time.perf_counter() - begin)
    return times


def bench_train(arguments, folder):
    make_demo(arguments.binary, folder / "shards", 4000, arguments.side)
    write_config(arguments, folder, arguments.steps)
    rows = []
    for number in range(arguments.rounds):
        mine = our_steps(arguments, folder)
        command = [sys.executable, __file__, *sys.argv[1:], "--reference", "train"]
        their_peak, said = peak_mib(command, stdout=subprocess.PIPE, env=environment(arguments))
        rows.append(compared("train", number, "open_clip", "ms a step", mine, (float(said.split()[-1]), their_peak)))
    report("train", "clip.train", "open_clip", "ms a step", rows)


def make_pictures(folder, count):
    """Shards of JPEG pictures of 256 pixels with captions; a quarter of them in another folder, too."""
    import io
    import random
    import tarfile
    from PIL import Image, ImageDraw
    rng = random.Random(0)
    per_shard = max(1, count // 8)
    for shard in range(8):
        with tarfile.open(folder / f"{shard:06}.tar", "w") as tar:
            for place in range(per_shard):
                small = Image.frombytes("RGB", (32, 32), rng.randbytes(32 * 32 * 3))
                picture = small.resize((256, 256), Image.Resampling.BICUBIC)
                ImageDraw.Draw(picture).ellipse([rng.randrange(128), rng.randrange(128), 200, 200], fill=(rng.randrange(256), 30, 90))
                content = io.BytesIO()
                picture.save(content, "JPEG", quality=90)
                for name, data in ((f"{shard:06}{place:04}.jpg", content.getvalue()),
                                   (f"{shard:06}{place:04}.txt", f"a picture of number {rng.randrange(10**6)}".encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    quarter = folder.with_name(folder.name + "_quarter")
    quarter.mkdir()
    for shard in range(2):
        shutil.copy(folder / f"{shard:06}.tar", quarter)


def our_embedding(arguments, folder, pictures):
    """@return seconds, MiB"""
    out = folder / "embedded"
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    peak = peak_mib([arguments.binary, "shards", "embed", pictures, "--clip", folder / "clip.pth", "--out", out,
                     "--batch-size", str(arguments.batch)], cwd=folder, stdout=subprocess.DEVNULL, env=environment(arguments))[0]
    return time.perf_counter() - begin, peak


def their_embedding(arguments, folder, pictures, threads):
    """What clip-retrieval's inference does. @return seconds"""
    import numpy
    import open_clip
    import torch
    import webdataset
    from safetensors.torch import load_file
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    model = open_clip.CLIP(**towers(arguments))
    weights = load_file(folder / "for_open_clip/open_clip_model.safetensors")
    model.load_state_dict({name: tensor for name, tensor in weights.items() if name != "clip_merges"}, strict=False)
    model.eval()
    prepare = Compose([Resize(arguments.side, InterpolationMode.BICUBIC), CenterCrop(arguments.side), lambda image: image.convert("RGB"),
                       ToTensor(), Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))])

    def tokens(text):  # the length of a tokenized caption is what counts here
        row = torch.zeros(CONTEXT, dtype=torch.long)
        row[:12], row[0], row[11] = 7, VOCABULARY - 2, VOCABULARY - 1
        return row

    shards = sorted(map(str, pathlib.Path(pictures).glob("*.tar")))
    data = webdataset.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("jpg", "txt").map_tuple(prepare, tokens)
    loader = torch.utils.data.DataLoader(data, batch_size=arguments.batch, num_workers=threads, prefetch_factor=2)
    images, texts = [], []
    with torch.no_grad():
        for batch, captions in loader:
            feature = model.encode_image(batch)
            images.append((feature / feature.norm(dim=-1, keepdim=True)).numpy())
            feature = model.encode_text(captions)
            texts.append((feature / feature.norm(dim=-1, keepdim=True)).numpy())
    numpy.save(folder / "their_img_emb.npy", numpy.concatenate(images))
    numpy.save(folder / "their_text_emb.npy", numpy.concatenate(texts))
    return time.perf_counter() - begin


def check_embeddings(arguments, folder, quarter):
    """With one worker the order of the samples is that of the shards."""
    import numpy
    run_theirs(arguments, folder, quarter, threads=1)
    our_embedding(arguments, folder, quarter)
    mine = numpy.concatenate([numpy.load(path) for path in sorted((folder / "embedded/img_emb").glob("*.npy"))])
    theirs = numpy.load(folder / "their_img_emb.npy")
    if mine.shape != theirs.shape or abs(mine - theirs).max() > 1e-4:
        raise SystemExit(f"the embeddings differ: {mine.shape} and {theirs.shape}, by up to {abs(mine - theirs).max()}")


def run_theirs(arguments, folder, pictures, threads=None):
    """@return seconds, MiB"""
    command = [sys.executable, __file__, *sys.argv[1:], "--threads", str(threads or arguments.threads), "--reference", "embed",
               "--folder", str(folder), "--pictures-folder", str(pictures)]
    peak, said = peak_mib(command, stdout=subprocess.PIPE, env=environment(arguments))
    return float(said.split()[-1]), peak


def bench_embed(arguments, folder):
    make_demo(arguments.binary, folder / "shards", 1000, arguments.side)
    write_config(arguments, folder, steps=2)
    train(arguments, folder)
    (folder / "for_open_clip").mkdir()
    subprocess.run([arguments.binary, "convert", folder / "clip.pth", folder / "for_open_clip/open_clip_model.safetensors", "--open-clip"],
                   check=True, stdout=subprocess.DEVNULL)
    pictures = folder / "pictures"
    pictures.mkdir()
    make_pictures(pictures, arguments.pictures)
    quarter = folder / "pictures_quarter"
    check_embeddings(arguments, folder, quarter)
    count = 6 * max(1, arguments.pictures // 8)
    rows = []
    for number in range(arguments.rounds):
        mine, theirs = [], []
        for part in (quarter, pictures):
            mine.append(our_embedding(arguments, folder, part))
            theirs.append(run_theirs(arguments, folder, part))
        our_time, their_time = ((two[1][0] - two[0][0]) / count for two in (mine, theirs))
        rows.append(compared("embed", number, "open_clip", "ms a picture", (our_time, mine[1][1]), (their_time, theirs[1][1])))
    report("embed", "clip.embed", "open_clip", "ms a picture", rows)


def main():
    parser = parser_of(__doc__, "dalle2-train", rounds=5, threads=2)
    parser.add_argument("--only", choices=("train", "embed"))
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--pictures", type=int, default=1500)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--reference", choices=("train", "embed"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--pictures-folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reference == "train":
        print(statistics.median(their_steps(arguments)[SKIPPED:]))
        return
    if arguments.reference == "embed":
        print(their_embedding(arguments, arguments.folder, arguments.pictures_folder, arguments.threads))
        return
    for what, bench in (("train", bench_train), ("embed", bench_embed)):
        if arguments.only in (None, what):
            with tempfile.TemporaryDirectory() as name:
                bench(arguments, pathlib.Path(name))


if __name__ == "__main__":
    main()
