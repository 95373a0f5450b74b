#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pictures as Pillow decodes and resamples them.

Writes <out>/images/: the encoded files (decode/, oriented/, rgba/), cases.json, and the expected RGB bytes of
all cases one after another in decoded.npy, oriented.npy and resized.npy (uint8), or RGBA bytes in rgba.npy: each
picture, then a part of it, resized. Needs Pillow 13.0.0 and numpy.
"""
import io
import json
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

from case_files import folder_and_options

FILTERS = ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def picture(rng, width, height, channels=3):
    """Smooth waves with an edge and some noise, as photographs have."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = []
    for _ in range(channels):
        fx, fy, phase = rng.uniform(0.02, 0.9), rng.uniform(0.02, 0.9), rng.uniform(0, 6.3)
        plane = 128 + 100 * np.sin(fx * x + fy * y + phase)
        plane += rng.choice([-80, 80]) * (x > rng.uniform(0, width)) + rng.normal(0, 12, x.shape)
        planes.append(plane)
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def png_file(samples, depth, colour_type, interlace=False, palette=None, transparency=None):
    """A PNG of [h, w, channels] integers, for what Pillow itself does not write."""
    height, width, _ = samples.shape

    def rows(part):
        out = b""
        for row in part:
            if depth == 16:
                out += b"\0" + row.astype(">u2").tobytes()
            elif depth == 8:
                out += b"\0" + row.astype("u1").tobytes()
            else:
                bits = "".join(format(int(v), f"0{depth}b") for v in row.reshape(-1))
                bits += "0" * (-len(bits) % 8)
                out += b"\0" + bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
        return out

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    parts = [samples[y0::dy, x0::dx] for x0, y0, dx, dy in ADAM7] if interlace else [samples]
    data = b"".join(rows(part) for part in parts if part.size)
    file = b"\x89PNG\r\n\x1a\n"
    file += chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, int(interlace)))
    if palette is not None:
        file += chunk(b"PLTE", palette.astype("u1").tobytes())
    if transparency is not None:
        file += chunk(b"tRNS", transparency)
    return file + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


def saved(image, format_, **options):
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def without_end_marker(rgb):
    """Pillow takes one in thirty of them, depending on the last bits of the last block; we take none."""
    while True:
        cut = saved(rgb(), "JPEG")[:-2]
        try:
            Image.open(io.BytesIO(cut)).load()
        except OSError:
            return cut


def jpegs(rng, size):
    def rgb():
        return Image.fromarray(picture(rng, *size()))

    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            quality = int(rng.integers(20, 96))
            yield (f"rgb_s{subsampling}_{'progressive' if progressive else 'baseline'}.jpg",
                   saved(rgb(), "JPEG", quality=quality, subsampling=subsampling, progressive=progressive))
    yield "grey.jpg", saved(rgb().convert("L"), "JPEG", quality=80)
    yield "restarts.jpg", saved(rgb(), "JPEG", restart_marker_blocks=2)
    yield "keep_rgb.jpg", saved(rgb(), "JPEG", keep_rgb=True, quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: to be ignored
    yield "exif_orientation.jpg", saved(rgb(), "JPEG", exif=exif)
    cmyk = saved(Image.fromarray(picture(rng, *size(), 4), "CMYK"), "JPEG", quality=85)
    yield "cmyk.jpg", cmyk
    adobe = cmyk.index(b"Adobe")
    yield "ycck.jpg", cmyk[:adobe + 11] + b"\x02" + cmyk[adobe + 12:]
    yield "no_end_marker.jpg", without_end_marker(rgb)
    yield "png_inside.jpg", saved(rgb(), "PNG")


def resampled_jpeg(rng, luma, width, height, **options):
    """A JPEG with a sampling that Pillow does not write: the factors of an existing one are overwritten.

    The blocks stand elsewhere then, which is as good a picture as any. `luma` is 0xHV.
    """
    per_unit = (luma >> 4) * (luma & 15)  # luminance blocks a unit, as many as Pillow writes
    subsampling, across, down = {1: (0, 1, 1), 2: (1, 2, 1), 4: (2, 2, 2)}[per_unit]
    units = -(-width // (8 * (luma >> 4))), -(-height // (8 * (luma & 15)))
    source = Image.fromarray(picture(rng, 8 * across * units[0], 8 * down * units[1]))
    content = bytearray(saved(source, "JPEG", subsampling=subsampling, **options))
    frame = content.index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    content[frame + 5:frame + 9] = struct.pack(">HH", height, width)
    content[frame + 11] = luma
    return bytes(content)


def more_jpegs(rng, size):
    for name, luma in (("s440", 0x12), ("s411", 0x41), ("s441", 0x14)):
        yield f"rgb_{name}.jpg", resampled_jpeg(rng, luma, *size(), quality=int(rng.integers(20, 96)))
    # Without interleaving a progressive file's scans have as many blocks as the picture needs, so it has to
    # fill its units.
    yield "rgb_s440_progressive.jpg", resampled_jpeg(rng, 0x12, 24, 32, quality=70, progressive=True)
    yield "grey_progressive.jpg", saved(Image.fromarray(picture(rng, *size())).convert("L"), "JPEG",
                                        progressive=True)
    cmyk = saved(Image.fromarray(picture(rng, *size(), 4), "CMYK"), "JPEG", quality=85, progressive=True)
    yield "cmyk_progressive.jpg", cmyk


def oriented_cases(rng, folder):
    """Pictures that say how they are to be turned, and what ImageOps.exif_transpose makes of them."""
    def encoded():
        for orientation in range(0, 10):  # 0 and 9 are none
            exif = Image.Exif()
            exif[0x0112] = orientation
            exif[0x010E] = "a description"
            if orientation % 2:
                exif.endian = ">"
            for format_, options in (("JPEG", {"subsampling": orientation % 3}), ("PNG", {}), ("WEBP", {})):
                image = Image.fromarray(picture(rng, int(rng.integers(1, 40)), int(rng.integers(1, 30))))
                yield (f"{orientation}.{format_.lower()}", saved(image, format_, exif=exif, **options))
        for i, text in enumerate(('tiff:Orientation="6"', "<tiff:Orientation>8</tiff:Orientation>", "nothing")):
            image = Image.fromarray(picture(rng, 21, 13))
            yield f"xmp{i}.jpeg", saved(image, "JPEG", xmp=f"<x:xmpmeta>{text}</x:xmpmeta>".encode())
            yield f"xmp{i}.webp", saved(image, "WEBP", xmp=f"<x:xmpmeta>{text}</x:xmpmeta>".encode())
        yield "no_exif.jpeg", saved(Image.fromarray(picture(rng, 9, 12)), "JPEG")

    cases, expected = [], []
    for name, content in encoded():
        (folder / name).write_bytes(content)
        rgb = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
        cases.append({"file": name, "width": rgb.shape[1], "height": rgb.shape[0]})
        expected.append(rgb.reshape(-1))
    return cases, np.concatenate(expected)


def pngs(rng, size):
    def sample(depth, channels):
        if depth == 8:
            return picture(rng, *size(), channels).astype(np.int64)
        width, height = size()
        return rng.integers(0, 2 ** depth, (height, width, channels))

    for interlace in (False, True):
        end = "_adam7.png" if interlace else ".png"
        for depth in (1, 2, 4, 8, 16):
            yield f"grey{depth}{end}", png_file(sample(depth, 1), depth, 0, interlace)
        for depth in (8, 16):
            yield f"rgb{depth}{end}", png_file(sample(depth, 3), depth, 2, interlace)
            yield f"grey_alpha{depth}{end}", png_file(sample(depth, 2), depth, 4, interlace)
            yield f"rgba{depth}{end}", png_file(sample(depth, 4), depth, 6, interlace)
        for depth in (1, 2, 4, 8):
            palette = rng.integers(0, 256, (2 ** depth, 3))
            yield f"palette{depth}{end}", png_file(sample(depth, 1), depth, 3, interlace, palette)
    palette = rng.integers(0, 256, (16, 3))
    yield "palette_transparent.png", png_file(sample(4, 1), 4, 3, False, palette, bytes([0, 128, 255]))
    yield "palette_short.png", png_file(sample(8, 1), 8, 3, False, palette)
    yield "grey_transparent.png", png_file(sample(8, 1), 8, 0, False, None, struct.pack(">H", 120))
    yield "rgb_transparent.png", png_file(sample(8, 3), 8, 2, False, None, struct.pack(">HHH", 1, 2, 3))
    dark = rng.integers(0, 400, (9, 11, 1))  # 16 bits, of which many values are below 256
    yield "grey16_dark.png", png_file(dark, 16, 0)


def webps(rng, size):
    yield "lossy.webp", saved(Image.fromarray(picture(rng, *size())), "WEBP", quality=70)
    yield "lossless.webp", saved(Image.fromarray(picture(rng, *size())), "WEBP", lossless=True)
    rgba = Image.fromarray(picture(rng, *size(), 4))
    yield "lossy_alpha.webp", saved(rgba, "WEBP", quality=60)
    yield "lossless_alpha.webp", saved(rgba, "WEBP", lossless=True)
    yield "webp_inside.jpg", saved(Image.fromarray(picture(rng, *size())), "WEBP", quality=90)


def decode_cases(rng, more_rng, folder):
    def size(rng=rng):
        return int(rng.integers(1, 49)), int(rng.integers(1, 41))

    cases, expected = [], []
    files = [*jpegs(rng, size), *pngs(rng, size), *webps(rng, size), *more_jpegs(more_rng, lambda: size(more_rng))]
    for name, content in files:
        (folder / name).write_bytes(content)
        image = Image.open(io.BytesIO(content))
        try:
            image.load()
        except OSError:
            cases.append({"file": name, "refused": True})
            continue
        rgb = np.asarray(image.convert("RGB"))
        if image.mode.startswith("I;16"):  # differs from Pillow, which clips
            rgb = np.repeat(scaled(np.asarray(image))[..., None], 3, axis=-1)
        cases.append({"file": name, "refused": False, "width": rgb.shape[1], "height": rgb.shape[0]})
        expected.append(rgb.reshape(-1))
    return cases, np.concatenate(expected)


def scaled(deep):
    """16 bits to 8, rounded."""
    return ((deep.astype(np.int64) * 255 + 32767) // 65535).astype(np.uint8)


def transparent_files(rng):
    """Files of all kinds of transparency, each with its RGBA pixels as a Pillow image."""
    def deep(channels):
        return rng.integers(0, 65536, (13, 17, channels))

    def opened(name, content):
        return name, content, Image.open(io.BytesIO(content)).convert("RGBA")

    palette = rng.integers(0, 256, (256, 3))
    alphas = bytes(rng.integers(0, 256, 200).astype(np.uint8))
    yield opened("palette.png", png_file(picture(rng, 21, 14, 1), 8, 3, False, palette, alphas))
    yield opened("palette2.png", png_file(rng.integers(0, 4, (9, 11, 1)), 2, 3, True, palette[:4], b"\0\x80"))
    yield opened("grey_alpha.png", png_file(picture(rng, 16, 12, 2), 8, 4))
    yield opened("grey_alpha16.png", png_file(deep(2), 16, 4, True))
    yield opened("rgba.png", png_file(picture(rng, 19, 23, 4), 8, 6))
    yield opened("rgba16.png", png_file(deep(4), 16, 6))
    grey = picture(rng, 14, 10, 1)
    yield opened("grey_key.png", png_file(grey, 8, 0, False, None, struct.pack(">H", int(grey[3, 4, 0]))))
    bits = rng.integers(0, 2, (8, 9, 1))
    yield opened("bit_key.png", png_file(bits, 1, 0, False, None, struct.pack(">H", 0)))
    rgb = picture(rng, 12, 15)
    rgb[2:5] = rgb[1, 1]
    yield opened("rgb_key.png", png_file(rgb, 8, 2, False, None, struct.pack(">HHH", *map(int, rgb[1, 1]))))
    for name, depth_of in (("grey16_key.png", 1), ("rgb16_key.png", 3)):  # Pillow compares 8 bits with 16
        samples = deep(depth_of)
        samples[4:7] = key = samples[2, 3].copy()
        samples[8] = key ^ 1  # the same high byte
        content = png_file(samples, 16, 0 if depth_of == 1 else 2, False, None, key.astype(">u2").tobytes())
        values = scaled(samples) if depth_of == 1 else (samples >> 8).astype(np.uint8)
        colours = np.broadcast_to(values, (13, 17, 3))
        alpha = np.where((samples == key).all(-1, keepdims=True), 0, 255).astype(np.uint8)
        yield name, content, Image.fromarray(np.concatenate([colours, alpha], -1))
    soft = Image.fromarray(picture(rng, 26, 18, 4))
    yield opened("lossy.webp", saved(soft, "WEBP", quality=70))
    yield opened("lossless.webp", saved(soft, "WEBP", lossless=True))
    yield opened("opaque.webp", saved(soft.convert("RGB"), "WEBP", quality=80))
    yield opened("opaque.jpeg", saved(soft.convert("L"), "JPEG", quality=90))


def rgba_cases(rng, folder):
    cases, expected = [], []
    for i, (name, content, image) in enumerate(transparent_files(rng)):
        (folder / name).write_bytes(content)
        mode = FILTERS[i % len(FILTERS)]
        left, top = int(rng.integers(0, 3)), int(rng.integers(0, 3))
        resized = image.crop((left, top, image.width, image.height)).resize(
            (7, 5), getattr(Image.Resampling, mode.upper()))
        cases.append({"file": name, "width": image.width, "height": image.height, "mode": mode, "left": left,
                      "top": top})
        expected += [np.asarray(image).reshape(-1), np.asarray(resized).reshape(-1)]
    return cases, np.concatenate(expected)


def resize_cases(rng, count):
    """Crop, then resize, as torchvision's resized_crop does."""
    source = Image.fromarray(picture(rng, 61, 47))
    cases, expected = [], []
    for i in range(count):
        mode = FILTERS[i % len(FILTERS)]
        width, height = int(rng.integers(1, 62)), int(rng.integers(1, 48))
        if i % 5 == 0:
            width, height = 61, 47
        left, top = int(rng.integers(0, 62 - width)), int(rng.integers(0, 48 - height))
        out_width, out_height = int(rng.integers(1, 49)), int(rng.integers(1, 49))
        if i % 11 == 0:
            out_width = width
        if i % 13 == 0:
            out_height = height
        crop = source.crop((left, top, left + width, top + height))
        resized = crop.resize((out_width, out_height), getattr(Image.Resampling, mode.upper()))
        cases.append({"mode": mode, "left": left, "top": top, "width": width, "height": height,
                      "out_width": out_width, "out_height": out_height})
        expected.append(np.asarray(resized).reshape(-1))
    return source, cases, np.concatenate(expected)


KEPT = 45  # resized crops in the repository, beside all other pictures


def main():
    folder, arguments = folder_and_options("images", __doc__, cases=150, kept=KEPT)
    rng = np.random.default_rng(arguments.seed)
    for part in ("decode", "oriented", "rgba"):
        (folder / part).mkdir(exist_ok=True)
    more_rng = np.random.default_rng([arguments.seed, 1])
    decode, decoded = decode_cases(rng, more_rng, folder / "decode")
    oriented, oriented_bytes = oriented_cases(more_rng, folder / "oriented")
    rgba, rgba_bytes = rgba_cases(np.random.default_rng([arguments.seed, 2]), folder / "rgba")
    source, resize, resized = resize_cases(rng, arguments.kept or arguments.cases)
    np.save(folder / "decoded.npy", decoded)
    np.save(folder / "oriented.npy", oriented_bytes)
    np.save(folder / "rgba.npy", rgba_bytes)
    np.save(folder / "source.npy", np.asarray(source))
    np.save(folder / "resized.npy", resized)
    cases = {"decode": decode, "oriented": oriented, "rgba": rgba, "resize": resize}
    (folder / "cases.json").write_text(json.dumps(cases, indent=0) + "\n")


if __name__ == "__main__":
    main()
