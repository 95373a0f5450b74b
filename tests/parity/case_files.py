# SPDX-License-Identifier: MIT
"""What the makers of fixtures share: their options, and files of cases."""
import argparse
import json
import pathlib

import numpy as np
import torch
from safetensors.numpy import save_file


def folder_and_options(name, description, seed=0, cases=None, kept=None, flag=None):
    """The folder OUT/`name`, made if need be, and the options --out, --seed, --all and, if there is a usual number, --cases.

    @param flag name and help of an option of one's own
    @param kept which of the cases lie in the repository: `options.kept` is that, or None if all are to be written
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "fixtures", help="folder of all fixtures")
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--all", action="store_true", help="write every case, not only those that lie in the repository")
    if cases is not None:
        parser.add_argument("--cases", type=int, help=f"write this many cases, from the first on (--all: {cases})")
    if flag:
        parser.add_argument(flag[0], action="store_true", help=flag[1])
    options = parser.parse_args()
    if cases is not None:
        options.all |= options.cases is not None
        options.cases = options.cases or cases
    options.kept = None if options.all else kept
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


def write_cases(folder, make_case, options, sorts=None):
    """Writes options.cases cases, or those of options.kept, to case_00.safetensors and so on.

    @param make_case tensors and metadata of a draw's number, or None where the reference has none to compare with: the next
        number is tried. Some hang on the processor's roundings, so `kept` has the numbers of its draws by those of its cases
    @param sorts that cases have in turn: make_case also gets one of them
    """
    def drawn(case, draw):
        made = make_case(options.seed * 1000 + draw, *(() if sorts is None else (sorts[case % len(sorts)],)))
        if made is not None:
            write_case(folder, f"case_{case:02d}", *made)
        return made is not None

    if options.kept is not None:
        left_out = [case for case, draw in options.kept.items() if not drawn(case, draw)]
        print(f"{len(options.kept)} cases, of which {left_out} are left out")
        return
    draw = 0
    for case in range(options.cases):
        while not drawn(case, draw):
            draw += 1
        draw += 1
    print(f"{options.cases} cases, {draw - options.cases} left out")
