# SPDX-License-Identifier: MIT
"""What the makers of fixtures share: their options, and files of cases."""
import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file


def folder_and_options(name, description, seed=0, cases=None):
    """The folder OUT/`name`, made if need be, and the options --out, --seed and, if there is a usual number, --cases."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "fixtures", help="folder of all fixtures")
    parser.add_argument("--seed", type=int, default=seed)
    if cases is not None:
        parser.add_argument("--cases", type=int, default=cases)
    options = parser.parse_args()
    folder = options.out / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder, options


def write_case(folder, name, tensors, meta=None):
    """@param tensors of PyTorch or NumPy"""
    arrays = {key: value.detach().contiguous().numpy() if isinstance(value, torch.Tensor) else np.ascontiguousarray(value)
              for key, value in tensors.items()}
    path = folder / f"{name}.safetensors"
    save_file(arrays, path, metadata={"json": json.dumps(meta or {})})
    path.chmod(0o644)


def write_cases(folder, make_case, seed, count, sorts=None):
    """Writes `count` cases to case_00.safetensors and so on.

    @param make_case tensors and metadata of a number, or None where the reference has none to compare with: the next
        number is tried @param sorts that cases have in turn: make_case also gets one of them
    """
    made, left_out = 0, 0
    while made < count:
        sort = () if sorts is None else (sorts[made % len(sorts)],)
        case = make_case(seed * 1000 + made + left_out, *sort)
        if case is None:
            left_out += 1
            continue
        write_case(folder, f"case_{made:02d}", *case)
        made += 1
    print(f"{made} cases, {left_out} left out")
