#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes small shards with embeddings, and what the reference's loader makes of them.

Usage: make_data.py [--seed N] [--out FOLDER]; writes FOLDER/data. Needs dalle2-pytorch 1.15.6 (with
torch, torchvision, webdataset, Pillow).

  splits.json      shard lists of the three splits, by the reference's statements
  crops.json       boxes of torchvision's RandomResizedCrop and CenterCrop, sizes of Resize
  urls.json        webdataset's expansion of url texts
  shards, img_emb, text_emb   what both loaders read
  stream.json, images.npy, image_embeds.npy, text_encodings.npy   what the reference's loader yields
  augment.npy, augment_in.npy  pictures through RandomResizedCrop, flip and ToTensor under a seed
"""
import gzip
import io
import json
import math
import os
import shutil
import tarfile
import warnings

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as T

from case_files import folder_and_options

INDEX_WIDTH, SIDE = 4, 20


def reference_split(start, end, world, rank, seed, train, val, test):
    """The statements of train_decoder.create_dataloaders."""
    shards = list(range(start, end + 1))
    per_rank = math.floor(len(shards) / world)
    mine = shards[rank * per_rank:(rank + 1) * per_rank]
    n_train, n_test = round(train * len(mine)), round(test * len(mine))
    n_val = len(mine) - n_train - n_test
    parts = torch.utils.data.random_split(
        mine, [n_train, n_test, n_val], generator=torch.Generator().manual_seed(seed))
    return {"train": list(parts[0]), "test": list(parts[1]), "val": list(parts[2])}


def make_splits(rng, out):
    cases = []
    drawn = [(0, 9, 1, 0, seed, .75, .15, .1) for seed in (0, 1, 42)] + [(0, 6, 1, 0, 0, .75, .15, .1)]
    while len(drawn) < 60:
        world = int(rng.integers(1, 5))
        start = int(rng.integers(0, 50))
        drawn.append((start, start + int(rng.integers(world * 10, world * 70)), world,
                      int(rng.integers(0, world)), int(rng.integers(0, 2**31)),
                      *[(.75, .15, .1), (.5, .25, .25), (.6, .2, .2), (.8, .1, .1)][int(rng.integers(0, 4))]))
    for case in drawn:
        names = ("start", "end", "world", "rank", "seed", "train", "val", "test")
        cases.append({"in": dict(zip(names, case)), "out": reference_split(*case)})
    (out / "splits.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def make_crops(rng, out):
    boxes, sizes, centres = [], [], []
    for i in range(400):
        width, height = (int(x) for x in rng.integers(1, 600, 2))
        scale = [(.08, 1.0), (.5, 1.0), (.75, 1.0), (1.0, 1.0), (.9, 1.7)][i % 5]
        ratio = [(3 / 4, 4 / 3), (1.0, 1.0), (.5, 2.0)][i % 3]
        torch.manual_seed(i)
        top, left, h, w = T.RandomResizedCrop.get_params(Image.new("L", (width, height)), scale, ratio)
        boxes.append({"seed": i, "width": width, "height": height, "scale": scale, "ratio": ratio,
                      "box": [left, top, w, h]})
    for i in range(80):
        width, height = (int(x) for x in rng.integers(1, 300, 2))
        size = [int(rng.integers(1, 200))] if i % 3 else [int(x) for x in rng.integers(1, 200, 2)]
        shown = T.Resize(size)(Image.new("L", (width, height)))
        sizes.append({"width": width, "height": height, "size": size, "out": list(shown.size)})
    for i in range(80):
        # Each pixel of a 1-bit-per-axis picture tells where it came from.
        width, height = (int(x) for x in rng.integers(1, 40, 2))
        size = [int(x) for x in rng.integers(1, 40, 2)]
        source = np.zeros((height, width), np.uint16)
        source[:] = 1 + np.arange(height * width).reshape(height, width)
        shown = np.array(T.CenterCrop(size)(Image.fromarray(source.astype(np.int32))))
        y, x = (int(v) for v in np.argwhere(shown > 0)[0])
        row, column = divmod(int(shown[y, x]) - 1, width)
        centres.append({"width": width, "height": height, "size": size, "left": column - x, "top": row - y})
    (out / "crops.json").write_text(
        json.dumps({"boxes": boxes, "sizes": sizes, "centres": centres}, separators=(",", ":")) + "\n")


def make_urls(out):
    from webdataset.shardlists import expand_urls
    os.environ["WDS_PLACE"] = "/data/x"
    texts = ["a.tar", "s/{00..03}.tar", "{a,b{1,2}}.tar", "{3..1}", "{}", "{x}.tar", "{08..11}", "{1..03}",
             "{x{1,2}}", "{a..c}", "{0..6..2}", "${PLACE}/{0..1}.tar", "a{0..1}::b{2,3}::c", "pipe:cat {0..1}.tar",
             "{000..012}/{a,b}.tar", "{,x}y", "p{1,2}q{3,4}r"]
    cases = [{"in": text, "out": expand_urls(text)} for text in texts]
    (out / "urls.json").write_text(json.dumps(cases, indent=0) + "\n")


def draw_picture(rng, mode):
    width, height = (int(x) for x in rng.integers(18, 64, 2))
    coarse = rng.integers(0, 256, (4, 4, 4), dtype=np.uint8)
    picture = Image.fromarray(coarse, "RGBA").resize((width, height), Image.BICUBIC)
    return picture.convert(mode)


def encoded(picture, kind, **options):
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def draw_sample(rng, index):
    """Fields of a sample; all that the reference accepts, and the ways in which it drops one."""
    kind = index % 7
    if kind == 1:
        data = encoded(draw_picture(rng, "L"), "JPEG", quality=85)
    elif kind == 2:
        data = encoded(draw_picture(rng, "RGBA"), "PNG")
    elif kind == 3:
        data = encoded(draw_picture(rng, "RGB"), "JPEG", quality=60, subsampling=2, progressive=True)
    elif kind == 4:
        data = encoded(draw_picture(rng, "P"), "PNG")
    else:
        data = encoded(draw_picture(rng, "RGB"), "JPEG", quality=90, subsampling=0)
    if index == 5:
        data = b"not a picture at all"
    fields = {"JPG" if kind == 6 else "jpg": data,
              "txt": f"picture {index}, with \u00fcml\u00e4ut\n".encode(), "json": b"{}"}
    return fields


def write_shard(path, samples, packed):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for key, fields in samples:
            for name, data in fields.items():
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    data = stream.getvalue()
    path.write_bytes(gzip.compress(data, mtime=0) if packed else data)


def make_shards(rng, out):
    for name in ("shards", "img_emb", "text_emb"):
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir()
    number = 0
    for shard in range(4):
        rows = 8
        # Values of half precision in every type: the reference casts a batch to the type of its first
        # sample, which rounds where shards differ in type.
        image = rng.standard_normal((rows, 6)).astype(np.float16).astype(
            [np.float16, np.float32, np.float64, np.float32][shard])
        text = rng.standard_normal((rows, 3, 4)).astype(np.float16).astype(
            [np.float32, np.float16, np.float32, np.float32][shard])
        samples = []
        for row in range(6):
            # Row 3 of each shard is absent in the tar, as a failed download is.
            index = row if row < 3 else row + 1
            samples.append((f"{shard:03d}{index:04d}", draw_sample(rng, number)))
            number += 1
        image[2 if shard == 1 else 7] = 0
        text[4 if shard == 2 else 7] = 0
        if shard == 2:
            samples.append((f"{shard:03d}0099", draw_sample(rng, 0)))  # row out of range
        write_shard(out / "shards" / f"{shard:03d}.tar", samples, packed=shard == 1)
        if shard != 3:  # the last shard has no embeddings
            np.save(out / "img_emb" / f"img_emb_{shard:05d}.npy", image)
        np.save(out / "text_emb" / f"text_{shard:02d}.npy", text)


def run_reference(out):
    from dalle2_pytorch.dataloaders.decoder_loader import create_image_embedding_dataloader
    urls = [str(out / "shards" / f"{shard:03d}.tar") for shard in (2, 0, 9, 3, 1)]  # 9 is absent
    loader = create_image_embedding_dataloader(
        tar_url=urls, num_workers=1, batch_size=4, img_embeddings_url=str(out / "img_emb"),
        text_embeddings_url=str(out / "text_emb"), index_width=INDEX_WIDTH, shuffle_shards=False,
        img_preproc=T.Compose([T.Resize(SIDE + 2), T.CenterCrop(SIDE), T.ToTensor()]),
        extra_keys=["txt", "__key__"], handler=lambda error: True)
    images, image_embeds, texts, stream = [], [], [], []
    for image, embeddings, captions, keys in loader:
        images.append(image.numpy())
        image_embeds.append(embeddings["img"].float().numpy())
        texts.append(embeddings["text"].float().numpy())
        stream.append({"keys": list(keys), "captions": list(captions)})
    np.save(out / "images.npy", np.concatenate(images))
    np.save(out / "image_embeds.npy", np.concatenate(image_embeds).astype(np.float32))
    np.save(out / "text_encodings.npy", np.concatenate(texts).astype(np.float32))
    (out / "stream.json").write_text(json.dumps(stream, indent=0) + "\n")


def make_augmented(rng, out):
    pictures = rng.integers(0, 256, (6, 40, 31, 3), dtype=np.uint8)
    chain = T.Compose([T.RandomResizedCrop(size=16, scale=(.5, 1.0), ratio=(1.0, 1.0)),
                       T.RandomHorizontalFlip(), T.ToTensor()])
    shown = []
    for i, picture in enumerate(pictures):
        torch.manual_seed(1000 + i)
        shown.append(chain(Image.fromarray(picture)).numpy())
    np.save(out / "augment_in.npy", pictures)
    np.save(out / "augment.npy", np.stack(shown))


def main():
    out, arguments = folder_and_options("data", __doc__)
    warnings.filterwarnings("ignore")
    rng = np.random.default_rng(arguments.seed)
    make_splits(rng, out)
    make_crops(rng, out)
    make_urls(out)
    make_augmented(rng, out)
    make_shards(rng, out)
    run_reference(out)


if __name__ == "__main__":
    main()
