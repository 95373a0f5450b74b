#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Text to picture on a small set: do drawn pictures fit their captions? A CLIP, a prior and a decoder judge held-out captions.

    scripts/bench.sh stamps --shards embedded/000006.tar embedded/000002.tar --clip runs/clip/best.pth --prior runs/prior/best.pth \\
        --decoder runs/decoder/model.pth --out judged [--binary build/bin/dalle2-train] [--captions 40] [--cond-scale 1] [--seed 0]

--shards are tars that `shards embed` wrote and that no network was trained on: the test shard, and others that may add captions with a
colour. Needs numpy and Pillow. Draws a picture of each of the first captions of the test shard, and prints

1. how often the CLIP finds the picture's caption among 20: the mean over all choices of 19 of the other captions. Beside it the same for
   the real pictures, and the chance level;
2. for captions with a word for a colour, how often the mean hue of the drawn picture is at most 40 degrees from the word's. The chance
   level is the share of all drawn pictures whose hue fits the word.

--out gets sheet.png (held-out and drawn pictures, with captions) and what the commands wrote.
"""
import colorsys
import io
import math
import pathlib
import re
import shutil
import subprocess
import tarfile

import numpy
from PIL import Image, ImageDraw

from shared import parser_of

HUES = {"red": 0, "brown": 25, "orange": 30, "yellow": 55, "green": 110, "blue": 220, "purple": 280, "violet": 280, "pink": 340}
TOLERANCE = 40  # degrees
AMONG = 20


def samples_of(path, letters):
    """The picture, image embedding and caption of each sample, without repeated captions and those of more than `letters` letters."""
    found = {}
    with tarfile.open(path) as tar:
        for member in tar:
            key, field = member.name.split(".", 1)
            found.setdefault(key, {})[field] = tar.extractfile(member).read()
    samples = {}
    for fields in found.values():
        caption = fields.get("txt", b"").decode().strip()
        if not caption or len(caption) > letters or caption in samples:
            continue
        picture = next(fields[name] for name in ("png", "jpg", "jpeg", "webp") if name in fields)
        samples[caption] = (Image.open(io.BytesIO(picture)).convert("RGB"), numpy.load(io.BytesIO(fields["img_emb.npy"])), caption)
    return list(samples.values())


def colour_of(caption):
    words = [word for word in re.findall("[a-z]+", caption.lower()) if word in HUES]
    return words[0] if words else None


def mean_hue(picture):
    """@return degrees: the mean direction of the pixels' hues, each weighted by its chroma"""
    x = y = 0.0
    for red, green, blue in numpy.asarray(picture).reshape(-1, 3) / 255:
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        x += saturation * value * math.cos(2 * math.pi * hue)
        y += saturation * value * math.sin(2 * math.pi * hue)
    return math.degrees(math.atan2(y, x)) % 360


def fits(hue, word):
    return abs((hue - HUES[word] + 180) % 360 - 180) <= TOLERANCE


def first_among(images, texts):
    """@param images, texts [N, D] @return the probability that a picture's own text is the nearest of AMONG, and its standard error"""
    images, texts = (each / numpy.linalg.norm(each, axis=1, keepdims=True) for each in (images, texts))
    cosines = images @ texts.T
    nearer = (cosines > numpy.diag(cosines)[:, None]).sum(axis=1)
    others = len(texts) - 1
    shares = numpy.array([math.comb(others - n, AMONG - 1) / math.comb(others, AMONG - 1) for n in nearer.tolist()])
    return shares.mean(), shares.std(ddof=1) / math.sqrt(len(shares))


def sheet(pairs, path, columns=8, side=64):
    """Each cell: the held-out picture, the drawn one, and the caption below."""
    wide, high = 2 * side + 8, side + 18
    picture = Image.new("RGB", (columns * wide, -(-len(pairs) // columns) * high), "white")
    text = ImageDraw.Draw(picture)
    for number, (real, drawn, caption) in enumerate(pairs):
        x, y = number % columns * wide, number // columns * high
        for place, each in enumerate((real, drawn)):
            short = min(each.size)  # the central square, as training sees it
            left, top = (each.width - short) // 2, (each.height - short) // 2
            square = each.crop((left, top, left + short, top + short))
            picture.paste(square.resize((side, side), Image.Resampling.BICUBIC), (x + place * side, y))
        text.text((x + 2, y + side + 2), caption.encode("ascii", "replace").decode()[:wide // 6 - 1], fill="black")
    picture.save(path)


def main():
    parser = parser_of(__doc__, "dalle2-train")
    parser.add_argument("--shards", nargs="+", required=True)
    parser.add_argument("--clip", required=True)
    parser.add_argument("--prior", required=True)
    parser.add_argument("--decoder", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--captions", type=int, default=40)
    parser.add_argument("--colours", type=int, default=8)
    parser.add_argument("--letters", type=int, default=60, help="longer captions are left out: `sample` refuses those that the CLIP would cut")
    parser.add_argument("--cond-scale", default="1")
    parser.add_argument("--seed", default="0")
    arguments = parser.parse_args()

    def call(*command):
        subprocess.run([arguments.binary, *map(str, command)], check=True, stdout=subprocess.DEVNULL)

    held_out = [samples_of(path, arguments.letters) for path in arguments.shards]
    chosen = held_out[0][:arguments.captions]
    coloured = [sample for samples in held_out for sample in samples if colour_of(sample[2])][:arguments.colours]
    asked = chosen + [sample for sample in coloured if sample not in chosen]
    captions = [caption for _, _, caption in asked]
    out = arguments.out
    shutil.rmtree(out / "packed", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "captions.txt").write_text("\n".join(captions) + "\n")
    call("sample", "--text", f"@{out}/captions.txt", "--clip", arguments.clip, "--prior", arguments.prior, "--checkpoint", arguments.decoder,
         "--cond-scale", arguments.cond_scale, "--seed", arguments.seed, "--out", out / "drawn", "--overwrite")
    drawn = [Image.open(out / f"drawn/{number:04}.png").convert("RGB") for number in range(len(asked))]
    sheet([(real, picture, caption) for (real, _, caption), picture in zip(asked, drawn)], out / "sheet.png")

    # The CLIP embeds the drawn pictures with their captions.
    for number, caption in enumerate(captions):
        (out / f"drawn/{number:04}.txt").write_text(caption)
    for name in ("sheet.png", "captions.txt", "samples.npy"):
        (out / "drawn" / name).unlink(missing_ok=True)
    call("shards", "make", "--from", out / "drawn", "--out", out / "packed", "--in-order", "--per-shard", len(asked))
    call("shards", "embed", out / "packed", "--clip", arguments.clip, "--out", out / "embedded", "--overwrite")
    of_pictures, of_texts = (numpy.concatenate([numpy.load(path) for path in sorted((out / "embedded" / kind).glob("*.npy"))])
                             for kind in ("img_emb", "text_emb"))
    assert len(of_pictures) == len(of_texts) == len(asked)
    count = len(chosen)
    top1, error = first_among(of_pictures[:count], of_texts[:count])
    top1_real, error_real = first_among(numpy.stack([row.ravel() for _, row, _ in chosen]), of_texts[:count])
    print(f"caption found among {AMONG}, of {count} captions: drawn {top1:.1%} +- {error:.1%}, real pictures {top1_real:.1%} +- "
          f"{error_real:.1%}, chance {1 / AMONG:.1%}")

    hues = [mean_hue(picture) for picture in drawn]
    right, chance = 0, 0.0
    for sample in coloured:
        word, hue = colour_of(sample[2]), hues[captions.index(sample[2])]
        right += fits(hue, word)
        chance += sum(fits(each, word) for each in hues) / len(hues)
        real = mean_hue(sample[0].resize((32, 32)))
        print(f"  {sample[2]} {word} is {HUES[word]}, drawn {hue:.0f}: {'right' if fits(hue, word) else 'wrong'}; real picture {real:.0f}")
    print(f"hue fits the word: {right} of {len(coloured)}, chance {chance:.1f}")
    print(f"figure stamps.found_among_{AMONG} = {top1:.3f}")
    print(f"figure stamps.hue_fits = {right / len(coloured):.3f}")


if __name__ == "__main__":
    main()
