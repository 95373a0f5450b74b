# SPDX-License-Identifier: MIT
"""The parity tests with fresh cases: all those of every make_*.py with another seed, then the tests that read their files.

    python tests/parity/check_with_fresh_seeds.py [--seed N] [--keep FOLDER] build/bin/test_model build/bin/test_optim ...

Needs an environment with requirements.txt. Without --seed the seed is drawn; it is printed, and a failure says how to
draw the same cases again. DALLE2_TRAIN names the program, for the tests that run it.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCRIPTS = sorted(HERE.glob("make_*.py"))
SAMPLING = ROOT / "tests" / "e2e" / "reference_sampling_test.py"
CORES = os.cpu_count() or 1


def call(command, **environment):
    """@return exit code, output and seconds"""
    begin = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    return done.returncode, done.stdout, time.monotonic() - begin


def call_all(commands, **environment):
    """Runs (name, command) side by side. @return the names of those that failed; their output is printed"""
    def one(item):
        return item[0], *call(item[1], **environment)

    failed = []
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        for name, code, output, seconds in pool.map(one, commands):
            print(f"{name}: {'exit ' + str(code) if code else 'ok'} ({seconds:.0f} s)", flush=True)
            if code:
                failed.append(name)
                print(output, flush=True)
    return failed


def draw(seed, folder):
    """Every maker's cases into `folder`. @return what went wrong"""
    failed = call_all([(script.stem, [sys.executable, script, "--all", "--seed", seed, "--out", folder]) for script in SCRIPTS])
    units = [script.stem.removeprefix("make_") for script in SCRIPTS]
    empty = [unit for unit in units if not any((folder / unit).glob("*"))]
    return failed + [f"no files in {folder / unit}" for unit in empty]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2, 1000000))
    parser.add_argument("--keep", type=pathlib.Path, help="where the cases go, to look at them (default: a folder that is removed)")
    parser.add_argument("binaries", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    if len(SCRIPTS) < 20:
        sys.exit(f"{HERE}: expected at least 20 make_*.py, found {len(SCRIPTS)}")
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dalle2-fresh-") as scratch:
        folder = arguments.keep or pathlib.Path(scratch)
        failed = draw(arguments.seed, folder)
        if not failed:
            tests = [(binary.name, [binary]) for binary in arguments.binaries]
            tests.append((SAMPLING.name, [sys.executable, SAMPLING]))
            failed = call_all(tests, DALLE2_PARITY_DIR=str(folder))
    if failed:
        sys.exit(f"{', '.join(failed)} failed with seed {arguments.seed}; the same cases again: "
                 f"{sys.executable} {pathlib.Path(__file__).resolve()} --seed {arguments.seed} --keep FOLDER "
                 f"{' '.join(map(str, arguments.binaries))}")


if __name__ == "__main__":
    main()
