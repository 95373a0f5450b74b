# SPDX-License-Identifier: MIT
"""Python reads what we write: torch.load(weights_only=True, also mapped) and safetensors. That the reference's trainers do is in
tests/trainer/check_with_reference.py.

    python tests/checkpoint/check_with_python.py build/bin/test_checkpoint
"""
import math
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile

warnings.filterwarnings("ignore")

import torch
from safetensors import safe_open

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "..", "parity", "fixtures", "checkpoints")


def same(a, b, path=""):
    """Fails with the path of the first difference; types, order and bits count."""
    assert type(a) is type(b) or (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)), (path, type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride(), path
        if a.numel():
            assert a.detach().contiguous().reshape(-1).view(torch.uint8).equal(
                b.detach().contiguous().reshape(-1).view(torch.uint8)), path
    elif isinstance(a, dict):
        assert list(a) == list(b), (path, list(a), list(b))
        for key in a:
            same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for index, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{path}/{index}")
    elif isinstance(a, float) and math.isnan(a):
        assert math.isnan(b), path
    else:
        assert a == b, (path, a, b)


def check_sample(folder):
    path = os.path.join(folder, "sample.pth")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    plain = torch.load(path, weights_only=True)
    same(plain, torch.load(path, weights_only=True, mmap=True))
    assert plain["text"] == "äöü € \"quoted\"\n" and plain["tuples"] == ((), (1,), (1, "two", []))
    assert plain["bytes"] == b"\x00\xffab\x80" and plain["keyed"] == {0: "integer key", 1: {}}
    numbers = plain["numbers"]
    assert numbers[:9] == [0, 255, 256, 65535, 65536, -1, 2**63 - 1, -2**63, 1.5], numbers
    assert math.copysign(1, numbers[9]) == -1 and math.isnan(numbers[10]) and numbers[11] == math.inf
    assert numbers[12:] == [True, False, None]
    first, second, third = plain["views"]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.tolist() == [2, 3, 4, 5] and second.tolist() == [3, 4] and third.shape == (4, 3)
    assert plain["types"]["BFloat16"].dtype == torch.bfloat16 and plain["types"]["Float8_e5m2"].dtype == torch.float8_e5m2
    assert plain["scalar"].shape == () and plain["empty"].shape == (0, 3)


def check_round_trips(folder):
    for name in ("kinds", "trainer"):
        same(torch.load(os.path.join(FIXTURES, name + ".pth"), weights_only=True),
             torch.load(os.path.join(folder, name + ".pth"), weights_only=True))
    with safe_open(os.path.join(folder, "sample.safetensors"), "pt") as file:
        assert file.metadata() == {"k": "ä"}
        model = torch.load(os.path.join(FIXTURES, "trainer.pth"), weights_only=True)["model"]
        assert set(file.keys()) == set(model)
        for key in file.keys():
            same(file.get_tensor(key), model[key], key)


def main():
    test_binary = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, DALLE2_PYTHON_CHECK_DIR=folder)
        subprocess.run([test_binary, "files for Python are written"], env=environment, check=True,
                       cwd=os.path.join(HERE, "..", ".."))
        check_sample(folder)
        check_round_trips(folder)
    print("torch.load, safetensors: ok")


if __name__ == "__main__":
    main()
