#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What our Python scripts take from one another is there. Many scripts run only by hand: without this test, nobody would notice a renamed name."""
import ast
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("scripts", "tests", "apps")


def names_of(tree):
    """The names at the top level of a module."""
    names = set()
    for node in ast.walk(ast.Module(body=[each for each in tree.body if not isinstance(each, (ast.FunctionDef, ast.ClassDef))], type_ignores=[])):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
    return names | {each.name for each in tree.body if isinstance(each, (ast.FunctionDef, ast.ClassDef))}


def faults_of(trees):
    """@param trees by path. @return what is missing, and the number of names that were looked up"""
    faults, looked_up = [], 0
    for path, tree in trees.items():
        modules = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                taken = [(node.module, alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                modules.update({alias.asname or alias.name: alias.name for alias in node.names})
                continue
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                taken = [(modules[node.value.id], node.attr)]
            else:
                continue
            for module, name in taken:
                other = trees.get(path.parent / f"{module}.py")
                if other is None:
                    continue
                looked_up += 1
                if name not in names_of(other) and name != "*":
                    faults.append(f"{path}:{node.lineno}: {module}.py has no {name}")
    return faults, looked_up


def parsed(texts):
    return {pathlib.Path(path): ast.parse(text) for path, text in texts.items()}


class PythonNames(unittest.TestCase):
    def test_missing_names_are_found(self):
        found, looked_up = faults_of(parsed({
            "bench/steps.py": "import os\nA, B = 1, 2\nif A:\n    C = 3\ndef run():\n    inner = 4\nclass Kind:\n    field = 5\n",
            "bench/use.py": "import steps\nimport other as o\nfrom steps import A, C, Kind, gone\nsteps.run(); steps.inner; steps.os; o.anything\n",
            "else/use.py": "from steps import anything\n"}))
        self.assertEqual(found, ["bench/use.py:3: steps.py has no gone", "bench/use.py:4: steps.py has no inner"])
        self.assertEqual(looked_up, 7)

    def test_the_scripts_of_this_project(self):
        paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
        self.assertGreater(len(paths), 100)
        found, looked_up = faults_of({path: ast.parse(path.read_text()) for path in paths})
        self.assertEqual(found, [])
        self.assertGreater(looked_up, 300)


if __name__ == "__main__":
    sys.exit(unittest.main())
