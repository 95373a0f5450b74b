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
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
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
    """The copy of the tree and its build, which mutations leave as they are.

    A mutant is compiled beside its source, as the build would compile it, and linked before the libraries of the build: its
    object stands in for the library's. Several can be tried at a time.
    """

    def __init__(self, root, build, layers):
        self.root, self.build = root.resolve(), build
        targets = [f"test_{layer}" for layer in layers]
        made = subprocess.run(["cmake", "--build", build, "--target", *targets], capture_output=True, text=True)
        if made.returncode:
            sys.exit(made.stdout + made.stderr)
        commands = json.loads((build / "compile_commands.json").read_text())
        self.compile = {command["file"]: command for command in commands}
        self.link = {layer: self.link_command(layer) for layer in layers}
        self.seconds = {}
        for layer in layers:
            begin = time.monotonic()
            if not self.tests(build / f"bin/test_{layer}", 1200):
                sys.exit(f"mutate.sh: the tests of {layer} fail before anything is changed")
            self.seconds[layer] = time.monotonic() - begin

    def link_command(self, layer):
        return subprocess.run(["ninja", "-C", self.build, "-t", "commands", "-s", f"bin/test_{layer}"], check=True,
                              capture_output=True, text=True).stdout.strip().splitlines()[-1]

    def tests(self, program, limit):
        """True where all pass, False where one fails, None where they run for longer than `limit` seconds."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory() as scratch:
            environment["TMPDIR"] = scratch
            process = subprocess.Popen([program, "--abort"], cwd=self.root, preexec_fn=bound_memory, env=environment, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                return process.wait(limit) == 0
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def outcome(self, number, mutation):
        layer = pathlib.Path(mutation.file).parts[1]
        path = self.root / mutation.file
        mutant = path.with_name(f"mutant_{number}_{path.name}")
        made, program = self.build / f"bin/mutant_{number}.o", self.build / f"bin/mutant_{number}"
        whole = path.read_text()
        mutant.write_text(whole[:mutation.begin] + mutation.after + whole[mutation.end:])
        try:
            command = self.compile[str(path)]
            words = [str(mutant) if word == str(path) else word for word in shlex.split(command["command"])]
            words[words.index("-o") + 1] = str(made)
            if subprocess.run(words, cwd=command["directory"], capture_output=True).returncode:
                return "invalid"
            own = f"-o bin/test_{layer} "
            if own not in self.link[layer]:
                sys.exit(f"mutate.sh: expected `{own}` in the command that links the tests of {layer}")
            linked = subprocess.run(self.link[layer].replace(own, f"{made} -o {program} ", 1), shell=True, cwd=self.build,
                                    capture_output=True, text=True)
            if linked.returncode:
                sys.exit(linked.stdout + linked.stderr)
            passed = self.tests(program, 4 * self.seconds[layer] + 20)
        finally:
            for file in (mutant, made, program):
                file.unlink(missing_ok=True)
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
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutations that are tried at a time")
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
    begun = {result["number"]: result for result in results}
    mutations = list(enumerate(drawn(root, args.files, args.seed)))
    bench = Bench(root, build, sorted({pathlib.Path(file).parts[1] for file in args.files}))

    def tried(numbered):
        number, mutation = numbered
        known = begun.get(number)
        if known is not None and not (args.again and known["outcome"] == "survived"):
            return known
        line, before, after = line_of(root, mutation)
        result = {"number": number, "layer": pathlib.Path(mutation.file).parts[1], "file": mutation.file, "line": line,
                  "kind": mutation.kind, "before": before, "after": after, "outcome": bench.outcome(number, mutation)}
        print(f"{number}: {result['outcome']}: {mutation.file}:{line}: {mutation.kind}", flush=True)
        return result

    def keep(result):
        begun[result["number"]] = result
        store.write_text("".join(json.dumps(begun[key]) + "\n" for key in sorted(begun)))

    valid, place = 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        while valid < args.count and place < len(mutations):
            chosen = mutations[place:place + args.count - valid]
            place += len(chosen)
            for done in concurrent.futures.as_completed([pool.submit(tried, numbered) for numbered in chosen]):
                keep(done.result())
                valid += done.result()["outcome"] != "invalid"
    report([begun[key] for key in sorted(begun)])


if __name__ == "__main__":
    main()
