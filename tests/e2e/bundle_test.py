# SPDX-License-Identifier: MIT
"""What a bundle of a build with CUDA holds, against what its libraries ask for: those that they need to start, and those that they load by
name when an operation first needs them.

DALLE2_BUILD names the folder of the build. The bundle is made of links, for it would take gigabytes.
"""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import harness

BUILD = pathlib.Path(os.environ.get("DALLE2_BUILD", harness.ROOT / "build"))
# Of LibTorch's folder and NVIDIA's, by the names without version. What loads them, and why no run of this program does.
NEVER_LOADED = {
    "libnvperf_host": "CUPTI's profiler of the hardware's counters",
    "libtorch_python": "Python",
}
# LazyNVRTC.cpp of LibTorch puts this name together in code.
NAMED_IN_CODE = {"libcaffe2_nvrtc"}
# cuDNN's parts; libcudnn.so.9 names four of them, libcudnn_graph.so.9 the others.
CUDNN = {f"libcudnn_{part}" for part in ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled")}


def stem(name):
    return name.split(".so")[0]


def sections(path, *wanted):
    """Bytes of the sections of an ELF file that hold strings, and not those with kernels."""
    listed = subprocess.run(["readelf", "--wide", "--section-headers", path], check=True, capture_output=True, text=True).stdout
    with open(path, "rb") as file:
        for name, offset, size in re.findall(r"\] (\.\S+)\s+\S+\s+[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", listed):
            if name.startswith(wanted):
                file.seek(int(offset, 16))
                yield file.read(int(size, 16))


def named_in(path):
    """Libraries that a library names, without their versions."""
    found = set()
    for content in sections(path, ".rodata", ".data", ".dynstr", ".lrodata"):
        found.update(match.decode() for match in re.findall(rb"(?<![A-Za-z0-9_])((?:lib|nvshmem_)[A-Za-z0-9_+-]+)\.so(?:\.[0-9.]+)?\0", content))
    return found - {stem(path.name)}


def dynamic(path):
    """The names that a library needs, and the folders that it looks in itself (RUNPATH)."""
    listed = subprocess.run(["readelf", "--wide", "--dynamic", path], check=True, capture_output=True, text=True).stdout
    runpath = re.findall(r"\(RUNPATH\).*\[(.*)\]", listed)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", listed)), runpath[0].split(":") if runpath else []


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="dalle2-bundle-")
        cls.addClassCleanup(cls.folder.cleanup)
        # The libraries of the component `libraries` are changed as they are installed, which would change what a link names.
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.folder.name, "--component", "libtorch"], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "CMAKE_INSTALL_MODE": "ABS_SYMLINK"})
        cls.bundle = {path.name: path for path in pathlib.Path(cls.folder.name).rglob("*.so*")}
        torch = pathlib.Path((BUILD / "torch_dir").read_text().strip())
        cls.offered = {path.name for folder in [torch / "lib", *torch.parent.glob("nvidia/*/lib")] for path in folder.glob("*.so*")}

    def test_it_has_all_that_its_libraries_need_to_start(self):
        self.assertLessEqual({"libtorch_cuda.so", "libtorch_cuda_linalg.so", "libtorch_cpu.so", "libnccl.so.2"}, self.bundle.keys())
        for name, path in self.bundle.items():
            self.assertTrue(path.exists(), name)
            missing = dynamic(path)[0] & self.offered - self.bundle.keys()
            self.assertFalse(missing, name)

    def test_it_has_all_that_its_libraries_load_by_name(self):
        offered = {stem(name) for name in self.offered}
        bundled = {stem(name) for name in self.bundle}
        self.assertLessEqual(CUDNN | NAMED_IN_CODE, bundled)
        seen = set()
        for name, path in self.bundle.items():
            named = named_in(path) & offered
            seen |= named
            self.assertFalse(named - bundled - NEVER_LOADED.keys(), f"{name} loads them, and they are not in the bundle")
        # The search itself has to find what is known to be there.
        self.assertLessEqual(CUDNN | {"libnvrtc", "libnvrtc-builtins", "libtorch_cuda_linalg", "nvshmem_bootstrap_uid"}, seen)

    def test_its_libraries_find_each_other_in_one_folder(self):
        # One with a RUNPATH of its own does not look where the program's RPATH says.
        self.assertEqual(len({path.parent for path in self.bundle.values()}), 1)
        for name, path in self.bundle.items():
            runpath = dynamic(path)[1]
            self.assertTrue(not runpath or {"$ORIGIN", "${ORIGIN}"} & set(runpath), f"{name}: {runpath}")


if __name__ == "__main__":
    harness.main()
