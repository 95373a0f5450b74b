#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random tar layouts, and the samples that webdataset 1.0.2 makes of them.

Writes <out>/webdataset/: NNN.tar files (plain, gzip, bzip2 or xz inside) and cases.json with the samples
in order and the number of members that webdataset warned of. Needs webdataset 1.0.2.
"""
import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
import warnings

from webdataset import tariterators

FOLDERS = ["", "", "", "", "a/", "a/b/", "a.b/", "./", "../../", "/abs/", "__meta__/", "__x/", "x/__y__/", ".h/",
           "a//", "ordner_äöü/", "l" * 120 + "/"]
KEYS = ["0", "1", "2", "000012", "k", "K", "", "_", "__", "__k__", "key with space", "日本", "n" * 130, "line\nfeed"]
FIELDS = ["jpg", "JPG", "txt", "Txt", "json", "seg.png", "img_emb.npy", "a.B.c", "", ".jpg", "__key__", "__bad__",
          "é"]
BARE = ["README", "__meta__", "__.x__", ".hidden", "a/.hidden", "a.b/.hidden", "nodot/x", "__only__\n", "____"]


def member_names(rng):
    for _ in range(rng.randint(0, 9)):
        if rng.random() < 0.15:
            yield rng.choice(BARE)
            continue
        stem = rng.choice(FOLDERS) + rng.choice(KEYS)
        for _ in range(rng.randint(1, 3)):
            yield stem + "." + rng.choice(FIELDS)


def make_tar(rng):
    out = io.BytesIO()
    format_ = rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=out, mode="w", format=format_) as tar:
        for i, name in enumerate(member_names(rng)):
            info = tarfile.TarInfo(name)
            content = f"{i}:{rng.random()}".encode() if rng.random() < 0.9 else b""
            kind = rng.random()
            if kind < 0.06:
                info.type = rng.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
                info.linkname = "0.jpg"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    data = out.getvalue()
    pack = rng.choice([gzip_bytes, gzip_bytes, gzip_bytes, bz2.compress, lzma.compress])
    return data if rng.random() < 0.05 else pack(data)


def gzip_bytes(data):
    return gzip.compress(data, mtime=0)


def samples_of(path):
    problems = []

    def handler(error):
        problems.append(str(error))
        return True

    with open(path, "rb") as stream:
        source = [{"url": path, "stream": stream}]
        files = tariterators.tar_file_expander(source, handler=handler)
        samples = []
        for sample in tariterators.group_by_keys(files, handler=handler):
            fields = {k: v.decode() for k, v in sample.items() if k not in ("__key__", "__url__")}
            samples.append({"key": sample["__key__"], "fields": fields})
    return samples, len(problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "fixtures"))
    parser.add_argument("--count", type=int, default=60)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = random.Random(arguments.seed)
    folder = os.path.join(arguments.out, "webdataset")
    os.makedirs(folder, exist_ok=True)
    cases = []
    for i in range(arguments.count):
        path = os.path.join(folder, f"{i:03d}.tar")
        with open(path, "wb") as file:
            file.write(make_tar(rng))
        samples, problems = samples_of(path)
        cases.append({"file": f"{i:03d}.tar", "samples": samples, "warnings": problems})
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as file:
        json.dump(cases, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
