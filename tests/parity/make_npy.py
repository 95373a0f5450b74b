#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Arrays as NumPy saves them.

Writes <out>/npy/: one file a case, and cases.json with shape, type and values (as float32, "nan" and
"inf" as text), or for what has to be refused a word of the reason. Needs numpy.
"""
import json

import numpy as np

from case_files import folder_and_options


def accepted(rng):
    half = np.concatenate([
        rng.standard_normal(20).astype("<f2"),
        np.array([0, -0.0, 65504, -65504, 6e-8, -6e-8, 6.1e-5, 5.96e-5, np.inf, -np.inf, np.nan], "<f2")])
    yield "float16", half.reshape(31, 1)
    yield "float32", rng.standard_normal((3, 4)).astype("<f4")
    yield "float64", rng.standard_normal((2, 3, 2)).astype("<f8") * 1e3
    yield "int64", rng.integers(-2 ** 20, 2 ** 20, 7).astype("<i8")
    yield "uint8", rng.integers(0, 256, (4, 3)).astype("u1")
    yield "bool", rng.integers(0, 2, (5,)).astype(bool)
    yield "scalar", np.float32(rng.standard_normal())
    yield "no_rows", np.zeros((0, 8), "<f4")
    yield "vector_fortran", np.asfortranarray(rng.standard_normal(6).astype("<f4"))
    yield "fortran", np.asfortranarray(rng.standard_normal((3, 2)).astype("<f4"))
    yield "fortran_half", np.asfortranarray(rng.standard_normal((2, 3, 4)).astype("<f2"))
    yield "text_encodings", rng.standard_normal((2, 5, 3)).astype("<f2")


def refused(rng):
    yield "big_endian", "big-endian", rng.standard_normal((2, 2)).astype(">f4")
    yield "int32", "<i4", np.arange(4, dtype="<i4")
    yield "complex", "<c8", np.zeros(3, "<c8")
    yield "records", "structured", np.zeros(2, [("a", "<f4"), ("b", "<i8")])
    yield "texts", "<U3", np.array(["one", "two"])


def text_of(value):
    return float(value) if np.isfinite(value) else str(value)


def main():
    folder, arguments = folder_and_options("npy", __doc__)
    rng = np.random.default_rng(arguments.seed)
    cases = []
    for name, array in accepted(rng):
        for version in ((1, 0), (2, 0), (3, 0)):
            file_name = f"{name}_v{version[0]}.npy"
            with open(folder / file_name, "wb") as file:
                np.lib.format.write_array(file, np.asanyarray(array), version=version)
            values = np.asarray(array).astype("<f4").reshape(-1)
            cases.append({"file": file_name, "shape": list(np.shape(array)),
                          "descr": np.asarray(array).dtype.str, "values": [text_of(v) for v in values]})
    for name, reason, array in refused(rng):
        np.save(folder / f"{name}.npy", array)
        cases.append({"file": f"{name}.npy", "refused": reason})
    (folder / "cases.json").write_text(json.dumps(cases, indent=0) + "\n")


if __name__ == "__main__":
    main()
