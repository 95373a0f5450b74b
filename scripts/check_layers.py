#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the tree against the house rules: what each layer may use, and the form of the sources.

Usage: check_layers.py [ROOT]

The table of layers is read from ROOT/docs/contributing.md, section "Layers". Prints a line for each
breach (file:line: what, and what to do) and exits with 1; exits with 0 if there is none.
"""
import dataclasses
import pathlib
import re
import sys

MAX_LINES = 800
MAX_README_LINES = 10
MAX_FOLDER_SOURCES = 40
MAX_CASES_BYTES = 8_000_000
CASES = ("tests/parity/fixtures", "tests/fuzz/corpus")
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
CODE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2|c10d)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
# Put together here, so that this file does not hold the words it looks for.
UNFINISHED = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME)\\b")
KEYWORDS = {"TORCH", "SOURCES", "USES", "LINKS"}


@dataclasses.dataclass
class Layer:
    uses: set
    torch: bool
    later: bool


class Breaches(list):
    def add(self, path, line, text):
        self.append(f"{path}:{line}: {text}")


def read_layers(text):
    """The rows of the table below the heading "Layers": {name: Layer}; ValueError if it is malformed."""
    section = re.search(r"^## Layers\s*$(.*?)(?=^## |\Z)", text, re.M | re.S)
    if section is None:
        raise ValueError('no section "## Layers"')
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in section.group(1).splitlines() if line.startswith("|")]
    if len(rows) < 3 or rows[0][:4] != ["layer", "may use", "torch", "state"]:
        raise ValueError('the table needs the columns "layer | may use | torch | state | ..."')
    names = [row[0].strip("`") for row in rows[2:]]
    layers = {}
    for position, row in enumerate(rows[2:]):
        if len(row) < 4 or row[2] not in ("yes", "no") or row[3] not in ("", "later"):
            raise ValueError(f"row {names[position]}: torch is yes or no, state empty or later")
        below = names[position + 1:]
        uses = set(below) if row[1] == "all below" else set(row[1].split()) - {"nothing"}
        if uses - set(below):
            raise ValueError(f"row {names[position]}: {sorted(uses - set(below))} is no layer below it")
        layers[names[position]] = Layer(uses, row[2] == "yes", row[3] == "later")
    return layers


def layer_of(path):
    """lib/tracker/x.h -> tracker; apps/x.cpp -> apps; apps/demo/x.cpp -> demo."""
    return path.parts[1] if path.parts[0] == "lib" or len(path.parts) > 2 else "apps"


def without_comments(text):
    """C++ text with comments blanked, lines kept. Strings that hold // are rare enough to be cut too."""
    text = re.sub(r"/\*.*?\*/", lambda found: "\n" * found.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def check_includes(root, path, layers, used, breaches):
    """Each #include of one source against the row of its layer; fills `used`: {layer: (path, line)}."""
    name = layer_of(path)
    row = layers[name]
    for number, line in enumerate(without_comments((root / path).read_text()).splitlines(), 1):
        found = INCLUDE.match(line)
        if found is None:
            continue
        header = found.group(1) or found.group(2)
        target = header.split("/")[0]
        if TORCH_HEADER.match(header):
            if not row.torch:
                breaches.add(path, number, f"<{header}>: {name} is free of torch")
        elif target in layers and "/" in header:
            if found.group(1) is None:
                breaches.add(path, number, f'our own header is included as "{header}"')
            if target != name and target not in row.uses:
                allowed = " ".join(sorted(row.uses)) or "nothing"
                breaches.add(path, number, f'"{header}": {name} may use {allowed}, not {target}')
            elif target != name:
                used.setdefault(target, (path, number))
        elif found.group(1) is not None and not (name == "apps" and (root / "apps" / header).exists()):
            breaches.add(path, number, f'"{header}": write the path from lib/, e.g. "base/error.h"')


def read_calls(text, function):
    """The arguments of each call of a CMake function: [(line, [words])]."""
    text = re.sub(r"#[^\n]*", "", text)
    calls = []
    for found in re.finditer(rf"\b{function}\s*\(([^)]*)\)", text):
        calls.append((text.count("\n", 0, found.start()) + 1, found.group(1).split()))
    return calls


def keyword_values(words, keyword):
    values, active = [], False
    for word in words:
        if word in KEYWORDS:
            active = word == keyword
        elif active:
            values.append(word)
    return values


def check_library(path, line, words, layers, breaches):
    """One dalle2_library call. Returns what it USES."""
    name = layer_of(path)
    row = layers[name]
    if words[:1] != [name]:
        breaches.add(path, line, f"the target of {path.parent} is named {name}")
    if "TORCH" in words and not row.torch:
        breaches.add(path, line, f"TORCH: {name} is free of torch")
    uses = keyword_values(words, "USES")
    for target in uses:
        if target not in row.uses:
            allowed = " ".join(sorted(row.uses)) or "nothing"
            breaches.add(path, line, f"USES {target}: {name} may use {allowed}")
    for target in keyword_values(words, "LINKS"):
        if target in layers:
            breaches.add(path, line, f"LINKS {target}: a layer stands under USES")
        if "torch" in target and not row.torch:
            breaches.add(path, line, f"LINKS {target}: {name} is free of torch")
    return uses


def reachable(name, uses):
    """The layers that `name` links, directly or through those it uses."""
    seen, open_ends = set(), [name]
    while open_ends:
        for target in uses.get(open_ends.pop(), []):
            if target not in seen:
                seen.add(target)
                open_ends.append(target)
    return seen


def check_layers(root, layers, breaches):
    uses, includes, places = {}, {}, {}
    folders = [folder for folder in sorted((root / "lib").glob("*")) if folder.is_dir()]
    if (root / "apps").is_dir():
        folders += [root / "apps", *(folder for folder in sorted((root / "apps").glob("*")) if folder.is_dir())]
    for folder in folders:
        path = folder.relative_to(root)
        name = folder.name
        below = folder.glob("*") if name == "apps" else folder.rglob("*")
        files = [file for file in sorted(below) if file.is_file()]
        if not files:
            continue
        if name not in layers:
            breaches.add(path, 1, "no row in the table of layers in docs/contributing.md")
            continue
        if layers[name].later:
            breaches.add(path, 1, 'it exists: take the "later" from its row in docs/contributing.md')
        includes[name], places[name] = {}, path
        for file in files:
            if file.suffix in CODE_SUFFIXES:
                check_includes(root, file.relative_to(root), layers, includes[name], breaches)
        cmake = folder / "CMakeLists.txt"
        if cmake.exists() and name != "apps":
            for line, words in read_calls(cmake.read_text(), "dalle2_library"):
                uses[name] = check_library(cmake.relative_to(root), line, words, layers, breaches)
    for name, targets in includes.items():
        if name not in uses:
            continue
        for target, (path, line) in targets.items():
            if target not in reachable(name, uses):
                breaches.add(path, line, f"{places[name]}/CMakeLists.txt does not say USES {target}")


def check_form(root, breaches):
    """SPDX line, length and unfinished work of every source."""
    for top in ("lib", "apps", "tests", "scripts"):
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root)
            if not file.is_file() or "fixtures" in path.parts or "__pycache__" in path.parts:
                continue
            if file.suffix not in SOURCE_SUFFIXES and file.name != "CMakeLists.txt":
                continue
            lines = file.read_text().splitlines()
            if not any("SPDX-License-Identifier: MIT" in line for line in lines[:2]):
                breaches.add(path, 1, "the first line (after #!) says SPDX-License-Identifier: MIT")
            if len(lines) > MAX_LINES:
                breaches.add(path, len(lines), f"{len(lines)} lines, at most {MAX_LINES}: split it")
            for number, line in enumerate(lines, 1):
                if UNFINISHED.search(line):
                    breaches.add(path, number, "unfinished work: finish it, or open an issue and say why")


def check_rooms(root, breaches):
    """A layer says in a README what it is; a folder holds few enough files to be read at a glance."""
    for folder in sorted((root / "lib").rglob("*")):
        if not folder.is_dir():
            continue
        path = folder.relative_to(root)
        sources = [file for file in folder.iterdir() if file.suffix in CODE_SUFFIXES]
        if len(sources) > MAX_FOLDER_SOURCES:
            breaches.add(path, 1, f"{len(sources)} sources, at most {MAX_FOLDER_SOURCES}: make folders by subject")
        if len(path.parts) == 2 and any(file.is_file() for file in folder.rglob("*")):
            readme = folder / "README.md"
            if not readme.exists():
                breaches.add(path, 1, "no README.md: what the layer is, where to start reading, what may not be in it")
            elif len(readme.read_text().splitlines()) > MAX_README_LINES:
                breaches.add(path / "README.md", MAX_README_LINES + 1, f"at most {MAX_README_LINES} lines")


def check_cases(root, breaches):
    """The cases that tests read are few enough for everybody's copy of the tree."""
    size = sum(file.stat().st_size for folder in CASES for file in (root / folder).rglob("*") if file.is_file())
    if size > MAX_CASES_BYTES:
        breaches.add(pathlib.Path(CASES[0]), 1, f"with {CASES[1]} {size:,} bytes, at most {MAX_CASES_BYTES:,}: keep fewer or smaller cases")


def check_tree(root):
    """All breaches in a tree, as lines."""
    breaches = Breaches()
    table = pathlib.Path("docs/contributing.md")
    try:
        layers = read_layers((root / table).read_text())
    except (OSError, ValueError) as error:
        breaches.add(table, 1, str(error))
        return breaches
    check_layers(root, layers, breaches)
    check_rooms(root, breaches)
    check_form(root, breaches)
    check_cases(root, breaches)
    return breaches


def main():
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1].startswith("-")):
        print(__doc__)
        return 2
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else pathlib.Path(__file__).parent.parent
    breaches = check_tree(root)
    for breach in breaches:
        print(breach)
    if breaches:
        print(f"{len(breaches)} breaches of the house rules (docs/contributing.md)")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
