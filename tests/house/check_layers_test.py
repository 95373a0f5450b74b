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

    def test_an_include_upwards_is_refused(self):
        self.refuse({"lib/base/log.h": SPDX + '\n#include "io/file.h"\n'},
                    'lib/base/log.h:3: "io/file.h": base may use nothing, not io')

    def test_an_include_sideways_is_refused(self):
        self.refuse({"lib/trainer/step.h": SPDX + '#include "io/file.h"\n'}, "trainer may use base model, not io")

    def test_a_torch_header_in_a_torch_free_layer_is_refused(self):
        for header in ("torch/nn.h", "ATen/core/Tensor.h", "c10/util/Half.h"):
            self.refuse({"lib/io/file.h": SPDX + f"#include <{header}>\n"}, f"<{header}>: io is free of torch")
            self.refuse({"lib/io/file.h": SPDX + f'  # include "{header}"\n'}, "io is free of torch")

    def test_the_torch_flag_of_a_torch_free_layer_is_refused(self):
        cmake = "# SPDX-License-Identifier: MIT\ndalle2_library(io TORCH SOURCES a.cpp USES base)\n"
        self.refuse({"lib/io/CMakeLists.txt": cmake}, "lib/io/CMakeLists.txt:2: TORCH: io is free of torch")

    def test_uses_beyond_the_row_are_refused(self):
        cmake = "# SPDX-License-Identifier: MIT\n\ndalle2_library(io\n  SOURCES a.cpp\n  USES base trainer)\n"
        self.refuse({"lib/io/CMakeLists.txt": cmake}, "lib/io/CMakeLists.txt:3: USES trainer: io may use base")

    def test_an_include_of_a_layer_that_is_not_linked_is_refused(self):
        cmake = "# SPDX-License-Identifier: MIT\ndalle2_library(io SOURCES a.cpp)\n"
        self.refuse({"lib/io/CMakeLists.txt": cmake}, "lib/io/CMakeLists.txt does not say USES base")

    def test_a_layer_under_links_and_a_wrong_target_name_are_refused(self):
        cmake = "# SPDX-License-Identifier: MIT\ndalle2_library(io SOURCES a.cpp USES base LINKS base)\n"
        self.refuse({"lib/io/CMakeLists.txt": cmake}, "a layer stands under USES")
        cmake = "# SPDX-License-Identifier: MIT\ndalle2_library(files SOURCES a.cpp USES base)\n"
        self.refuse({"lib/io/CMakeLists.txt": cmake}, "the target of lib/io is named io")

    def test_a_header_beside_its_source_is_named_from_the_root(self):
        self.refuse({"lib/io/file.h": SPDX + '#include "part.h"\n'}, "write the path from lib/")
        self.refuse({"lib/io/file.h": SPDX + "#include <base/log.h>\n"}, 'is included as "base/log.h"')

    def test_a_folder_without_a_row_is_refused(self):
        self.refuse({"lib/utils/x.h": SPDX, "lib/utils/README.md": "# utils\n"}, "lib/utils:1: no row in the table")
        self.refuse({"apps/utils/x.h": SPDX}, "apps/utils:1: no row in the table")

    def test_a_library_beside_the_program_keeps_to_its_own_row(self):
        self.refuse({"apps/shapes/circle.h": SPDX + '#include "io/file.h"\n#include "trainer/step.h"\n'},
                    'apps/shapes/circle.h:3: "trainer/step.h": shapes may use io, not trainer')
        cmake = "# SPDX-License-Identifier: MIT\ndalle2_library(shapes SOURCES a.cpp)\n"
        self.refuse({"apps/shapes/CMakeLists.txt": cmake}, "apps/shapes/CMakeLists.txt does not say USES io")

    def test_a_later_layer_that_exists_is_refused(self):
        self.refuse({"lib/model/unet/unet.h": SPDX, "lib/model/README.md": "# model\n"}, 'lib/model:1: it exists: take the "later"')

    def test_cases_that_are_too_large_together_are_refused(self):
        half = {"tests/parity/fixtures/unet/case": "x" * 4_000_000}
        self.assertEqual(self.run_checker(half).returncode, 0)
        self.refuse(half | {"tests/fuzz/corpus/tar": "x" * 4_000_000}, "tests/parity/fixtures:1: with tests/fuzz/corpus 8,0")

    def test_a_source_without_its_licence_line_is_refused(self):
        self.refuse({"lib/io/part.h": "#pragma once\n"}, "lib/io/part.h:1: the first line")
        self.refuse({"tests/io/CMakeLists.txt": "\n"}, "tests/io/CMakeLists.txt:1: the first line")

    def test_a_long_file_is_refused(self):
        self.assertEqual(self.run_checker({"lib/io/part.h": SPDX + "\n" * 799}).returncode, 0)
        self.refuse({"lib/io/part.h": SPDX + "\n" * 800}, "801 lines, at most 800")

    def test_a_layer_without_a_short_readme_is_refused(self):
        self.refuse({"lib/io/README.md": None}, "lib/io:1: no README.md")
        self.refuse({"lib/io/README.md": "line\n" * 11}, "lib/io/README.md:11: at most 10 lines")

    def test_a_crowded_folder_is_refused(self):
        crowd = {f"lib/io/part{i}.h": SPDX for i in range(39)}
        self.assertEqual(self.run_checker(crowd).returncode, 0)
        self.refuse({**crowd, "lib/io/part39.h": SPDX}, "lib/io:1: 41 sources, at most 40")

    def test_unfinished_work_is_refused(self):
        for word in ("TO" + "DO", "FIX" + "ME"):
            self.refuse({"apps/main.cpp": SPDX + f"// {word}: later\n"}, "apps/main.cpp:2: unfinished work")

    def test_a_table_that_is_absent_or_malformed_is_refused(self):
        self.refuse({"docs/contributing.md": None}, "docs/contributing.md:1:")
        self.refuse({"docs/contributing.md": "# Nothing\n"}, 'no section "## Layers"')
        self.refuse({"docs/contributing.md": TABLE.replace("torch |", "tensor |", 1)}, "the table needs the columns")
        self.refuse({"docs/contributing.md": TABLE.replace("| `io` | base |", "| `io` | trainer |")},
                    "['trainer'] is no layer below it")

    def test_wrong_use_of_the_checker_prints_its_help(self):
        result = subprocess.run([sys.executable, str(CHECKER), "--help"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("Usage: check_layers.py", result.stdout)


if __name__ == "__main__":
    unittest.main()
