# SPDX-License-Identifier: MIT
"""dalle2-train, a program that trains DALLE2-style image generators; this package starts it."""
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent


def libraries_of_torch():
    """The folder of torch's libraries; torch itself is not imported, which takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        wanted = next((line for line in importlib.metadata.requires("dalle2-train") or [] if line.startswith("torch")), "torch")
        sys.exit(f"dalle2-train: the package torch is not installed: pip install {wanted}")
    return pathlib.Path(spec.submodule_search_locations[0]).resolve() / "lib"


def main():
    """Replaces this process by the program."""
    program = FOLDER / "bin" / "dalle2-train"
    libraries = libraries_of_torch()
    if libraries != FOLDER.parent / "torch" / "lib":  # where the program looks by itself
        known = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = f"{libraries}:{known}" if known else str(libraries)
    os.execv(program, [str(program), *sys.argv[1:]])
