#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Changes one operator, constant or condition at a time and runs the tests of its layer: does a test notice?

Called by scripts/mutate.sh, which makes the copy of the tree that is changed here, and its build. A mutation has a
number: the same seed, files and tree give the same mutations. Each line of RESULTS is one mutation and what became of it:
killed (a test failed), hung (killed, too: the tests ran four times as long as they should), survived, or invalid (it did
not compile; another takes its place). A run that is begun again goes on behind the last line.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import time

OPERATORS = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "<": "<=", "<=": "<", ">": ">=", ">=": ">",
             "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="}
# clang-format puts spaces around binary operators and none into template arguments, pointers and signs.
BINARY = re.compile(r"(?<=[\w)\]}] )(" + "|".join(re.escape(key) for key in sorted(OPERATORS, key=len, reverse=True)) +
                    r")(?= [\w(!~*&\-{:])")
NUMBER = re.compile(r"(?<![\w.])(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+)(?![\w.])")
WORD = re.compile(r"\b(true|false)\b")
NOT = re.compile(r"(?<=[\s(])!(?=[\w(])")
IF = re.compile(r"\b(?:if|while) \((?!const|auto|int)")
# Comments, strings, preprocessor: not code that a test can notice. Nor are promises between our own units, which no input
# can break. `R"x(...)x"` does not occur in the chosen layers.
SKIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#[^\n]*|static_assert[^;]*;|D2_CHECK\([^;]*;',
                     re.DOTALL | re.MULTILINE)

kMemoryBytes = 16 << 30  # of addresses; LibTorch alone maps some GiB

Mutation = collections.namedtuple("Mutation", "file begin end before after kind")


def blanked(text):
    return SKIPPED.sub(lambda match: re.sub(r"[^\n]", "\x01", match.group()), text)


def closing(text, opening):
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError("a bracket is not closed")


def changed_number(number):
    if number.isdigit():
        return str(int(number) + 1)
    return repr(float(number) * 2) if float(number) else "1.0"


def mutations_of(root, file):
    code = blanked((root / file).read_text())
    for match in BINARY.finditer(code):
        yield Mutation(file, match.start(), match.end(), match.group(), OPERATORS[match.group()], "operator")
    for match in NUMBER.finditer(code):
        if code[match.start() - 1] != "<":  # a template's argument
            yield Mutation(file, match.start(), match.end(), match.group(), changed_number(match.group()), "constant")
    for match in WORD.finditer(code):
        yield Mutation(file, match.start(), match.end(), match.group(), {"true": "false", "false": "true"}[match.group()], "constant")
    for match in NOT.finditer(code):
        yield Mutation(file, match.start(), match.end(), "!", "", "condition")
    for match in IF.finditer(code):
        inside = slice(match.end(), closing(code, match.end() - 1))
        if ";" not in code[inside]:
            whole = (root / file).read_text()[inside]
            yield Mutation(file, inside.start, inside.stop, whole, f"!({whole})", "condition")


def drawn(root, files, seed):
    """All mutations in the order in which they are tried: one of each layer in turn."""
    by_layer = collections.defaultdict(list)
    for file in sorted(files):
        by_layer[pathlib.Path(file).parts[1]].extend(mutations_of(root, file))
    queues = []
    for layer, mutations in sorted(by_layer.items()):
        random.Random(f"{seed} {layer}").shuffle(mutations)
        queues.append(mutations)
    while any(queues):
        for queue in queues:
            if queue:
                yield queue.pop()


def copy_tree(tree, root):
    """Only what differs becomes newer, so that only that is compiled again."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = tree / name, root / name
        if source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def bound_memory():
    """A size that is wrong must not take the machine with it."""
    resource.setrlimit(resource.RLIMIT_AS, (kMemoryBytes, kMemoryBytes))


class Bench:
    """The copy of the tree, its build, and how long the tests of a layer take there when nothing is wrong."""

    def __init__(self, root, build):
        self.root, self.build, self.seconds = root, build, {}

    def make(self, layer):
        return subprocess.run(["cmake", "--build", self.build, "--target", f"test_{layer}"], capture_output=True, text=True)

    def tests(self, layer, limit):
        """True where all pass, False where one fails, None where they run for longer than `limit` seconds."""
        try:
            done = subprocess.run([self.build / f"bin/test_{layer}", "--abort"], cwd=self.root, timeout=limit, preexec_fn=bound_memory,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return None
        return done.returncode == 0

    def begin(self, layer):
        if layer in self.seconds:
            return
        made = self.make(layer)
        if made.returncode:
            sys.exit(made.stdout + made.stderr)
        begin = time.monotonic()
        if not self.tests(layer, 1200):
            sys.exit(f"mutate.sh: the tests of {layer} fail before anything is changed")
        self.seconds[layer] = time.monotonic() - begin

    def outcome(self, mutation):
        layer = pathlib.Path(mutation.file).parts[1]
        self.begin(layer)
        path = self.root / mutation.file
        whole = path.read_text()
        path.write_text(whole[:mutation.begin] + mutation.after + whole[mutation.end:])
        try:
            if self.make(layer).returncode:
                return "invalid"
            passed = self.tests(layer, 4 * self.seconds[layer] + 20)
        finally:
            path.write_text(whole)
        return "hung" if passed is None else "survived" if passed else "killed"


def line_of(root, mutation):
    text = (root / mutation.file).read_text()
    begin = text.rfind("\n", 0, mutation.begin) + 1
    end = text.find("\n", mutation.end)
    changed = text[begin:mutation.begin] + mutation.after + text[mutation.end:end]
    return text.count("\n", 0, mutation.begin) + 1, text[begin:end].strip(), changed.strip()


def report(results):
    counts = collections.Counter((result["layer"], result["outcome"]) for result in results)
    layers = sorted({layer for layer, _ in counts})
    print(f"{'layer':<12} tried killed hung survived killed or hung (%)")
    for layer in layers + ["all"]:
        of = lambda outcome: sum(count for (at, what), count in counts.items() if what == outcome and layer in (at, "all"))
        killed, hung, survived = of("killed"), of("hung"), of("survived")
        tried = killed + hung + survived
        print(f"{layer:<12} {tried:>5} {killed:>6} {hung:>4} {survived:>8} {100 * (killed + hung) / max(tried, 1):>17.1f}")
    for result in results:
        if result["outcome"] == "survived":
            print(f"\n{result['number']}: {result['file']}:{result['line']}\n  - {result['before']}\n  + {result['after']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="of the copy, its build and the results")
    parser.add_argument("--configure", nargs="+", default=[], metavar="OPTION", help="of CMake, without the leading -D")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="only the survivors of the results, for tests added since")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()

    tree = pathlib.Path.cwd()
    root, build, store = args.folder / "source", (args.folder / "build").resolve(), args.folder / "results.jsonl"
    copy_tree(tree, root)
    configured = subprocess.run(["cmake", "-S", root, "-B", build, "-G", "Ninja", *("-D" + option for option in args.configure)],
                                capture_output=True, text=True)
    if configured.returncode:
        sys.exit(configured.stdout + configured.stderr)
    results = [json.loads(line) for line in store.read_text().splitlines()] if store.exists() else []
    bench = Bench(root, build)
    begun = {result["number"]: result for result in results}
    valid = 0
    for number, mutation in enumerate(drawn(root, args.files, args.seed)):
        if valid == args.count:
            break
        result = begun.get(number)
        if result is None or (args.again and result["outcome"] == "survived"):
            line, before, after = line_of(root, mutation)
            outcome = bench.outcome(mutation)
            result = {"number": number, "layer": pathlib.Path(mutation.file).parts[1], "file": mutation.file, "line": line,
                      "kind": mutation.kind, "before": before, "after": after, "outcome": outcome}
            begun[number] = result
            store.write_text("".join(json.dumps(begun[key]) + "\n" for key in sorted(begun)))
            print(f"{number}: {outcome}: {mutation.file}:{line}: {mutation.kind}", flush=True)
        valid += result["outcome"] != "invalid"
    report([begun[key] for key in sorted(begun)])


if __name__ == "__main__":
    main()
