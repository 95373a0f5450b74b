# SPDX-License-Identifier: MIT
"""Writes docs/commands.md from the --help texts of the program: command_pages.py PROGRAM [PAGE]. Without PAGE to stdout."""
import os
import pathlib
import re
import subprocess
import sys

INTRODUCTION = """# Commands

This page is made by `scripts/docs.sh --commands` from the `--help` texts of the program. The exit codes below `dalle2-train` are also
those of the commands whose text names no others.
"""


def help_of(program, words):
    done = subprocess.run([program, *words, "--help"], env={**os.environ, "COLUMNS": "100", "TERM": "dumb"}, check=True,
                          stdout=subprocess.PIPE, text=True)
    return done.stdout.rstrip()


def subcommands(text):
    """The names below "Subcommands:" of a help text."""
    found = re.search(r"^(?:Subcommands|Commands):\n((?:  .*\n?|\n)+)", text, re.MULTILINE)
    return re.findall(r"^  ([a-z][\w-]*)", found.group(1), re.MULTILINE) if found else []


def pages(program, words=()):
    text = help_of(program, words)
    yield words, text
    for name in subcommands(text):
        yield from pages(program, (*words, name))


def page(program):
    parts, codes = [INTRODUCTION], ""
    for words, text in pages(program):
        if not words:
            codes = text[text.index("\n\nExit codes:"):]
        else:
            text = text.removesuffix(codes)
        parts.append(f"## {' '.join(('dalle2-train', *words))}\n```\n{text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    written = page(sys.argv[1])
    if len(sys.argv) == 3:
        pathlib.Path(sys.argv[2]).write_text(written)
    else:
        sys.stdout.write(written)
