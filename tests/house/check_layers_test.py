#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of scripts/check_layers.py: a good tree passes, each bad one is refused for its reason."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKER = ROOT / "scripts" / "check_layers.py"
SPDX = "// SPDX-License-Identifier: MIT\n"
TABLE = """# Contributing

## Layers

Words.

| layer | may use | torch | state | holds |
|---|---|---|---|---|
| `apps` | all below | no | | the program |
| `shapes` | io | no | | a library of the program's own |
| `trainer` | base model | yes | | steps |
| `model` | base | yes | later | networks |
| `io` | base | no | | files |
| `base` | nothing | no | | errors |

## Next
"""
GOOD = {
    "docs/contributing.md": TABLE,
    "apps/line.h": SPDX,
    "apps/shapes/circle.h": SPDX + '#include "io/file.h"\n',
    "apps/shapes/CMakeLists.txt": "# SPDX-License-Identifier: MIT\ndalle2_library(shapes SOURCES a.cpp USES io)\n",
    "apps/main.cpp": SPDX + '#include "line.h"\n#include "shapes/circle.h"\n#include "trainer/step.h"\n#include "base/log.h"\n',
    "lib/base/log.h": SPDX + "#include <string>\n",
    "lib/base/CMakeLists.txt": "# SPDX-License-Identifier: MIT\ndalle2_library(base\n  SOURCES log.cpp LINKS fmt::fmt)\n",
    "lib/io/file.h": SPDX + '#include "base/log.h"\n#include "io/part.h"\n// #include "trainer/step.h"\n',
    "lib/io/CMakeLists.txt": "# SPDX-License-Identifier: MIT\ndalle2_library(io SOURCES a.cpp USES base)\n",
    "lib/base/README.md": "# base\n" * 10,
    "lib/io/README.md": "# io\n",
    "lib/trainer/README.md": "# trainer\n",
    "lib/trainer/step.h": SPDX + '#include <torch/nn.h>\n#include "base/log.h"\n',
    "lib/trainer/CMakeLists.txt":
        "# SPDX-License-Identifier: MIT\ndalle2_library(trainer TORCH SOURCES a.cpp USES base)\n",
    "scripts/run.sh": "#!/bin/sh\n# SPDX-License-Identifier: MIT\n",
    "tests/parity/fixtures/made.py": "no licence line here\n",
}


def library(name, rest, before=""):
    return f"# SPDX-License-Identifier: MIT\n{before}dalle2_library({name}{rest})\n"


# What is changed in the good tree, and the breaches that are reported.
BAD = [
    # includes
    ({"lib/base/log.h": SPDX + '\n#include "io/file.h"\n'}, 'lib/base/log.h:3: "io/file.h": base may use nothing, not io'),
    ({"lib/trainer/step.h": SPDX + '#include "io/file.h"\n'}, "trainer may use base model, not io"),
    ({"lib/io/file.h": SPDX + '#include "part.h"\n'}, "write the path from lib/"),
    ({"lib/io/file.h": SPDX + "#include <base/log.h>\n"}, 'is included as "base/log.h"'),
    ({"apps/shapes/circle.h": SPDX + '#include "io/file.h"\n#include "trainer/step.h"\n'},
     'apps/shapes/circle.h:3: "trainer/step.h": shapes may use io, not trainer'),
    # torch
    *(({"lib/io/file.h": SPDX + f"#include <{header}>\n"}, f"<{header}>: io is free of torch")
      for header in ("torch/nn.h", "ATen/core/Tensor.h", "c10/util/Half.h")),
    ({"lib/io/file.h": SPDX + '  # include "torch/nn.h"\n'}, "io is free of torch"),
    ({"lib/io/CMakeLists.txt": library("io", " TORCH SOURCES a.cpp USES base")}, "lib/io/CMakeLists.txt:2: TORCH: io is free of torch"),
    # targets
    ({"lib/io/CMakeLists.txt": library("io", "\n  SOURCES a.cpp\n  USES base trainer", "\n")},
     "lib/io/CMakeLists.txt:3: USES trainer: io may use base"),
    ({"lib/io/CMakeLists.txt": library("io", " SOURCES a.cpp")}, "lib/io/CMakeLists.txt does not say USES base"),
    ({"lib/io/CMakeLists.txt": library("io", " SOURCES a.cpp USES base LINKS base")}, "a layer stands under USES"),
    ({"lib/io/CMakeLists.txt": library("files", " SOURCES a.cpp USES base")}, "the target of lib/io is named io"),
    ({"apps/shapes/CMakeLists.txt": library("shapes", " SOURCES a.cpp")}, "apps/shapes/CMakeLists.txt does not say USES io"),
    # folders and their rows
    ({"lib/utils/x.h": SPDX, "lib/utils/README.md": "# utils\n"}, "lib/utils:1: no row in the table"),
    ({"apps/utils/x.h": SPDX}, "apps/utils:1: no row in the table"),
    ({"lib/model/unet/unet.h": SPDX, "lib/model/README.md": "# model\n"}, 'lib/model:1: it exists: take the "later"'),
    ({"lib/io/README.md": None}, "lib/io:1: no README.md"),
    ({"lib/io/README.md": "line\n" * 11}, "lib/io/README.md:11: at most 10 lines"),
    # lines of files
    ({"lib/io/part.h": "#pragma once\n"}, "lib/io/part.h:1: the first line"),
    ({"tests/io/CMakeLists.txt": "\n"}, "tests/io/CMakeLists.txt:1: the first line"),
    *(({"apps/main.cpp": SPDX + f"// {word}: later\n"}, "apps/main.cpp:2: unfinished work") for word in ("TO" + "DO", "FIX" + "ME")),
    # the table itself
    ({"docs/contributing.md": None}, "docs/contributing.md:1:"),
    ({"docs/contributing.md": "# Nothing\n"}, 'no section "## Layers"'),
    ({"docs/contributing.md": TABLE.replace("torch |", "tensor |", 1)}, "the table needs the columns"),
    ({"docs/contributing.md": TABLE.replace("| `io` | base |", "| `io` | trainer |")}, "['trainer'] is no layer below it"),
]


class CheckLayersTest(unittest.TestCase):
    def run_checker(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**GOOD, **changes}.items():
                if text is None:
                    continue
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return subprocess.run([sys.executable, str(CHECKER), folder], capture_output=True, text=True)

    def refuse(self, changes, *expected):
        result = self.run_checker(changes)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for text in expected:
            self.assertIn(text, result.stdout)
        self.assertEqual(len(result.stdout.splitlines()), 2, result.stdout)  # the breach and the count

    def test_a_good_tree_passes(self):
        result = self.run_checker({})
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_a_bad_tree_is_refused_for_its_reason(self):
        for changes, reason in BAD:
            with self.subTest(reason):
                self.refuse(changes, reason)

    def test_cases_that_are_too_large_together_are_refused(self):
        half = {"tests/parity/fixtures/unet/case": "x" * 4_000_000}
        self.assertEqual(self.run_checker(half).returncode, 0)
        self.refuse(half | {"tests/fuzz/corpus/tar": "x" * 4_000_000}, "tests/parity/fixtures:1: with tests/fuzz/corpus 8,0")

    def test_a_long_file_is_refused(self):
        self.assertEqual(self.run_checker({"lib/io/part.h": SPDX + "\n" * 799}).returncode, 0)
        self.refuse({"lib/io/part.h": SPDX + "\n" * 800}, "801 lines, at most 800")

    def test_a_crowded_folder_is_refused(self):
        crowd = {f"lib/io/part{i}.h": SPDX for i in range(39)}
        self.assertEqual(self.run_checker(crowd).returncode, 0)
        self.refuse({**crowd, "lib/io/part39.h": SPDX}, "lib/io:1: 41 sources, at most 40")

    def test_wrong_use_of_the_checker_prints_its_help(self):
        result = subprocess.run([sys.executable, str(CHECKER), "--help"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("Usage: check_layers.py", result.stdout)


if __name__ == "__main__":
    unittest.main()
