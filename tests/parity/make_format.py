#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws format specs and templates, and lets Python's own str.format say what they give.

Usage: make_format.py [--seed N] [--out FOLDER]; writes FOLDER/format/cases.json. Needs no package.
"""
import json
import random
import struct

from case_files import folder_and_options

FIXED = [
    "epoch_{epoch:03d}.pth", "{samples_seen:>10}", "{validation_losses}", "{next_task}/{sample}",
    "{best_validation_loss}", "{{{epoch}}}", "{epoch:0{sample}d}", "{missing}", "{epoch", "epoch}",
    "{validation_losses:5}", "{validation_losses[0]:.3f}", "{validation_losses[9]}", "{epoch.x}",
    "{epoch!r:>5}", "{next_task!r}", "{next_task!a:>9}", "{next_task!q}", "{}", "{0}", "{epoch[0]}",
    "{validation_losses[x]}", "{validation_losses!s:>40}", "{next_task:05}", "{epoch:+,}", "{epoch!}",
    "{samples_seen:\u00e9>12}", "{samples_seen:\u20ac^14,}", "{next_task:.2}", "plain.pth", "",
    "{epoch:{sample}{next_task}}", "{ epoch}", "{validation_losses[0]", "{epoch:>{missing}}",
]


# Of a truth value and of None.
FLAGS = [
    "{is_best}", "{is_best!r:>8}", "{is_best!s:.2}", "{is_best:d}", "{is_best:05}", "{is_best:>3}", "{is_best:s}",
    "{is_best:.2f}", "{is_best:x}", "{is_best:%}", "{is_best[0]}", "{nothing}", "{nothing!s:>6}", "{nothing!r}",
    "{nothing:s}", "{nothing:.3f}", "{nothing:>5}", "{nothing[0]}", "{best:.3f}", "{best:08.2f}", "{best:+e}", "{best}",
    "{best:d}", "{best!s:>5}",
]


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def draw_fields(rng):
    return {
        "epoch": rng.choice([0, 1, 7, 42, 999, 12345, -3]),
        "sample": rng.choice([0, 4, 9, 12]),
        "samples_seen": rng.choice([0, 64, 123456, 1234567890123, 2**63 - 1, -2**63]),
        "next_task": rng.choice(["train", "sample", "val", "", "it's", "a\"b"]),
        "validation_losses": [float32(rng.uniform(0, 2)) for _ in range(rng.randrange(4))],
        "best_validation_loss": rng.choice(
            [13.725955963134766, 0.0, -0.0, 1.0, 1e16, 1e-5, 123456.789, 0.5, 1e22, 2.5, 1e-7, 99999.5,
             float("inf"), float("-inf"), float("nan"), rng.uniform(-1, 1), 10 ** rng.uniform(-12, 20)]),
    }


def draw_spec(rng):
    spec = ""
    if rng.random() < 0.4:
        spec += rng.choice(["", "", "x", "0", "*", "\u00e9", "<"]) + rng.choice("<>=^")
    spec += rng.choice(["", "", "", "+", "-", " "])
    spec += "z" if rng.random() < 0.1 else ""
    spec += "#" if rng.random() < 0.15 else ""
    spec += "0" if rng.random() < 0.25 else ""
    spec += str(rng.randrange(1, 24)) if rng.random() < 0.6 else ""
    spec += rng.choice(["", "", "", ",", "_"])
    spec += "." + str(rng.randrange(0, 12)) if rng.random() < 0.3 else ""
    spec += rng.choice(["", "", "", "d", "f", "e", "g", "s", "x", "X", "b", "o", "%", "E", "G", "F", "n",
                        "c", "q"])
    return spec


def case(template, fields):
    # `c` of a code outside printable ASCII is refused on purpose: it would end in a file's name.
    try:
        return {"template": template, "fields": encode(fields), "expected": template.format(**fields)}
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError):
        return {"template": template, "fields": encode(fields), "expected": None}


def encode(fields):
    """Floats as text, since JSON has no nan; {"float": text}, {"list": texts}, else plain JSON."""
    def one(value):
        if isinstance(value, float):
            return {"float": repr(value)}
        if isinstance(value, list):
            return {"list": [repr(entry) for entry in value]}
        return value
    return {name: one(value) for name, value in fields.items()}


def main():
    folder, arguments = folder_and_options("format", __doc__, cases=1500)
    rng = random.Random(arguments.seed)
    cases = [case(template, draw_fields(rng)) for template in FIXED for _ in range(2)]
    while len(cases) < arguments.cases:
        fields = draw_fields(rng)
        name = rng.choice(list(fields))
        spec = draw_spec(rng)
        if spec.endswith("c") and not 32 <= (fields[name] if isinstance(fields[name], int) else 32) < 127:
            continue
        drawn = case("a_{" + name + ":" + spec + "}.pth", {name: fields[name]})
        if drawn["expected"] is not None or rng.random() < 0.2:
            cases.append(drawn)
    for flag, best in ((True, float("inf")), (False, float("nan")), (True, float("-inf"))):
        fields = {"is_best": flag, "nothing": None, "best": best}
        cases += [case(template, fields) for template in FLAGS]
    lines = ",\n".join(json.dumps(entry) for entry in cases)
    (folder / "cases.json").write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()
