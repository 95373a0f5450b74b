#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the pictures of Noto Color Emoji as PNG files with their names as captions.

For each emoji of emoji-test.txt that the font draws: OUT/<hash>_<code points>.png, as it lies in the font
(136x128 pixels, transparent), and a .txt of the same name. The hash shuffles them, so that every shard
and split holds all kinds. Needs fontTools (Debian: python3-fonttools).
"""
import argparse
import hashlib
import pathlib
import re
import sys

from fontTools.ttLib import TTFont

VARIATION_SELECTOR = 0xFE0F  # "as a picture": the font leaves it out of its sequences


def emojis(path):
    """Code points and name of each emoji, from lines like "1F600 ; fully-qualified # 😀 E1.0 grinning face"."""
    line = re.compile(r"([0-9A-F ]+?)\s*;\s*(?:fully-qualified|component)\s*#\s*\S+\s+E[0-9.]+\s+(.+)")
    for text in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        match = line.fullmatch(text.strip())
        if match:
            yield [int(point, 16) for point in match[1].split()], match[2]


def ligatures(font):
    """Glyphs of sequences of glyphs, from the font's substitutions."""
    found = {}
    for lookup in font["GSUB"].table.LookupList.Lookup:
        for table in lookup.SubTable:
            table = getattr(table, "ExtSubTable", table)
            for first, choices in getattr(table, "ligatures", {}).items():
                for choice in choices:
                    found.setdefault((first, *choice.Component), choice.LigGlyph)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--font", required=True, help="NotoColorEmoji.ttf, with bitmaps (CBDT)")
    parser.add_argument("--names", required=True, help="emoji-test.txt of Unicode")
    parser.add_argument("--out", required=True, help="folder for the pictures")
    arguments = parser.parse_args()
    font = TTFont(arguments.font)
    if "CBDT" not in font:
        sys.exit(f"emoji_pictures.py: {arguments.font} holds no bitmaps (no table CBDT); "
                 "take the font of Debian's fonts-noto-color-emoji")
    glyph_of = font.getBestCmap()
    joined = ligatures(font)
    bitmaps = font["CBDT"].strikeData[-1]
    out = pathlib.Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    written, absent = 0, []
    for points, name in emojis(arguments.names):
        glyphs = tuple(glyph_of.get(point) for point in points if point != VARIATION_SELECTOR)
        glyph = glyphs[0] if len(glyphs) == 1 else joined.get(glyphs)
        picture = getattr(bitmaps.get(glyph), "imageData", b"")
        if not picture.startswith(b"\x89PNG"):
            absent.append(name)
            continue
        code = "_".join(f"{point:x}" for point in points)
        stem = out / f"{hashlib.sha256(code.encode()).hexdigest()[:8]}_{code}"
        stem.with_suffix(".png").write_bytes(picture)
        stem.with_suffix(".txt").write_text(name + "\n", encoding="utf-8")
        written += 1
    examples = f" ({', '.join(absent[:3])}{', ...' if len(absent) > 3 else ''})" if absent else ""
    print(f"{written} captioned pictures; {len(absent)} names that the font has no picture for{examples}")


if __name__ == "__main__":
    main()
