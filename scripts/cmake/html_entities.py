# SPDX-License-Identifier: MIT
"""Writes the named character references of HTML 5 as rows of a C++ array, sorted by name:
html_entities.py OUT. The table is that of Python's standard library, by which the reference unescapes captions."""
import html.entities
import pathlib
import sys


def literal(text):
    return "".join(f"\\{byte:03o}" for byte in text.encode("utf-8"))


rows = [f'{{"{name}", "{literal(text)}"}},\n' for name, text in sorted(html.entities.html5.items())]
out = pathlib.Path(sys.argv[1])
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text("".join(rows), encoding="ascii")
