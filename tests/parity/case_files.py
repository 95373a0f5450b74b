# SPDX-License-Identifier: MIT
"""Fixtures of drawn cases: draws until there are enough, and writes each to a file of its own."""
import json

import numpy as np
from safetensors.numpy import save_file


def write_case(path, tensors, meta):
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path,
              metadata={"json": json.dumps(meta)})
    path.chmod(0o644)


def write_cases(folder, make_case, seed, count):
    """Writes `count` cases to case_00.safetensors and so on.

    @param make_case tensors and metadata of a number, or None where the reference has none to compare with: the next
        number is tried
    """
    made, left_out = 0, 0
    while made < count:
        case = make_case(seed * 1000 + made + left_out)
        if case is None:
            left_out += 1
            continue
        write_case(folder / f"case_{made:02d}.safetensors", *case)
        made += 1
    print(f"{made} cases, {left_out} left out")
