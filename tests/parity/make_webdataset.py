#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random tar layouts, and the samples that webdataset 1.0.2 makes of them.

Writes <out>/webdataset/: a few shards a case (plain, gzip, bzip2 or xz inside) and cases.json with the samples
in order and the number of members that webdataset warned of. Names and contents stand there byte for byte as
the characters U+0000 to U+00FF; a content of more than 40 bytes as [size, CRC-32]. Needs webdataset 1.0.2.
"""
import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import warnings
import zlib

from webdataset import tariterators

from case_files import folder_and_options

FOLDERS = ["", "", "", "", "a/", "a/b/", "a.b/", "./", "../../", "/abs/", "__meta__/", "__x/", "x/__y__/", ".h/",
           "a//", "ordner_äöü/", "l" * 120 + "/", "UPPER/", "./d/", "k.jpg/", "/", "//", "~/", "a\\b/", "\udcff/"]
KEYS = ["0", "1", "2", "000012", "k", "K", "", "_", "__", "__k__", "key with space", "日本", "n" * 130, "line\nfeed",
        "\udce9t\udce9", "cafe\u0301", "*", "%s", "\t", " ", "🙂", "\r", "c\x7f\x01"]
FIELDS = ["jpg", "JPG", "txt", "Txt", "json", "seg.png", "img_emb.npy", "a.B.c", "", ".jpg", "__key__", "__bad__",
          "é", "É", "ÄÖ.Σx", "İ", "\udcc4", "J\udcffG", "__url__", "jpg ", "J" * 200, "txt\n"]
BARE = ["README", "__meta__", "__.x__", ".hidden", "a/.hidden", "a.b/.hidden", "nodot/x", "__only__\n", "____",
        "__a.b__", "__", ".", "..", "...", "a/..", "./", "dir.jpg/", "__x__/y/z.jpg", "__/a.jpg", "___/a.jpg",
        "__a__b/c.jpg", "a/__meta__"]
OTHER_TYPES = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
FILE_TYPES = [tarfile.REGTYPE] * 12 + [tarfile.AREGTYPE, tarfile.CONTTYPE]
# Names around the sizes of the fields of a header (100, prefix 155) and of a block.
LENGTHS = [96, 97, 98, 99, 100, 101, 102, 154, 155, 156, 157, 254, 255, 256, 257, 258, 511, 512, 513, 1500]
SIZES = [511, 512, 513, 1024, 5000, 10240, 70000]


def padded(rng, stem, field):
    """The name made longer, in its base or in its folders."""
    missing = rng.choice(LENGTHS) - len(f"{stem}.{field}")
    if missing <= 0:
        return stem
    head, slash, base = stem.rpartition("/")
    if rng.random() < 0.5:
        return head + slash + "p" * missing + base
    pieces = "".join("d" * rng.randint(1, 60) + "/" for _ in range(missing))[:missing]
    return head + slash + (pieces[:-1] + "/" if len(pieces) > 1 else "") + base


def member_names(rng):
    stems = []
    for _ in range(rng.randint(0, 9)):
        if rng.random() < 0.15:
            yield rng.choice(BARE)
            continue
        stem = rng.choice(FOLDERS) + rng.choice(KEYS)
        if stems and rng.random() < 0.15:
            stem = rng.choice(stems)  # a key that comes back
        if rng.random() < 0.1:
            stem = padded(rng, stem, "jpg")
        stems.append(stem)
        for _ in range(rng.randint(1, 3)):
            yield stem + "." + rng.choice(FIELDS)


def interleaved(rng):
    """Two keys by turns, or all fields of one kind before those of the other."""
    names = [f"{key}.{field}" for field in ("jpg", "txt") for key in ("a", "b")]
    rng.shuffle(names)
    return names


def content_of(rng, i):
    if rng.random() < 0.1:
        return b""
    if rng.random() < 0.04:
        return rng.choice([bytes, rng.randbytes])(rng.choice(SIZES))
    return f"{i}:{rng.random()}".encode()


def add_member(tar, rng, name, i):
    info = tarfile.TarInfo(name)
    info.mtime = rng.choice([0, 0, 1.5, -3]) if tar.format == tarfile.PAX_FORMAT else 0
    info.uid = rng.choice([0, 0, 3000000])  # beyond what octal digits hold
    if tar.format == tarfile.USTAR_FORMAT:
        info.uid = 0
    if rng.random() < 0.06:
        info.type = rng.choice(OTHER_TYPES)
        info.linkname = rng.choice(["0.jpg", name, "../../../etc/passwd", "t" * 150])
        tar.addfile(info)
        return
    content = b"" if name.endswith("/") else content_of(rng, i)  # with one it is no folder, and nothing else
    info.type = rng.choice(FILE_TYPES)
    if len(name) > 90 or name.endswith("/"):
        info.type = tarfile.REGTYPE  # tarfile reads no further after a folder with a content
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def make_tar(rng):
    out = io.BytesIO()
    format_ = rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    headers = {"comment": "of the whole file"} if rng.random() < 0.2 else None
    with tarfile.open(fileobj=out, mode="w", format=format_, errors="surrogateescape", pax_headers=headers) as tar:
        names = interleaved(rng) if rng.random() < 0.05 else member_names(rng)
        for i, name in enumerate(names):
            try:
                add_member(tar, rng, name, i)
            except ValueError:
                pass  # ustar cannot hold the name
    data = out.getvalue()
    pack = rng.choice([gzip_bytes, gzip_bytes, gzip_bytes, bz2.compress, lzma.compress])
    return data if rng.random() < 0.05 else pack(data)


def gzip_bytes(data):
    return gzip.compress(data, mtime=0)


def as_bytes(text):
    """The bytes of a name as characters that JSON can hold."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def as_content(data):
    return data.decode("latin-1") if len(data) <= 40 else [len(data), zlib.crc32(data)]


def samples_of(paths):
    problems = []

    def handler(error):
        if "duplicate file name" in str(error):  # the other one is a tar without members
            problems.append(str(error))
        return True

    streams = [open(path, "rb") for path in paths]
    sources = [{"url": path, "stream": stream} for path, stream in zip(paths, streams)]
    files = tariterators.tar_file_expander(sources, handler=handler)
    samples = []
    for sample in tariterators.group_by_keys(files, handler=handler):
        fields = {as_bytes(k): as_content(v) for k, v in sample.items() if k not in ("__key__", "__url__")}
        samples.append({"key": as_bytes(sample["__key__"]), "fields": fields})
    for stream in streams:
        stream.close()
    return samples, len(problems)


# The cases that lie in the repository: each packing, names of all kinds, one to three shards.
KEPT = (0, 3, 4, 5, 7, 9, 11, 12, 16, 19, 21, 25, 27, 29, 34, 37, 38)


def main():
    folder, arguments = folder_and_options("webdataset", __doc__, cases=40, kept=KEPT)
    warnings.simplefilter("ignore")
    rng = random.Random(arguments.seed)
    cases = []
    for i in range(arguments.cases):
        tars = {f"{i:03d}_{shard}.tar": make_tar(rng) for shard in range(rng.choice([1, 1, 1, 2, 3]))}
        if arguments.kept is not None and i not in arguments.kept:
            continue
        for name, content in tars.items():
            (folder / name).write_bytes(content)
        names = list(tars)
        samples, problems = samples_of([str(folder / name) for name in names])
        cases.append({"files": names, "samples": samples, "warnings": problems})
    (folder / "cases.json").write_text(json.dumps(cases, indent=0) + "\n")


if __name__ == "__main__":
    main()
