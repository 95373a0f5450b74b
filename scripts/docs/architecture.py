# SPDX-License-Identifier: MIT
"""Draws docs/images/architecture.svg from the code: a row for each layer, and the path of a batch, of a save and of a resume through them.

With PAGE, it also writes the functions that the page quotes anew.

Usage: architecture.py [OUT PAGE]     without OUT to stdout

Rows are the table of layers in docs/contributing.md. A station of a way is the definition of a function: if it is not where the way
says, the picture cannot be made.
"""
import html
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from check_layers import read_calls, keyword_values, read_layers  # noqa: E402

# Name of the way, its colour, and its stations: file below lib/, function as its definition begins.
WAYS = [
    ("a batch", "#3f51b5", [
        ("io/streams/url_source.cpp", "open_source"),
        ("io/formats/webdataset.cpp", "SampleReader::next"),
        ("data/loader/shard_dataset.cpp", "ShardWalk::next"),
        ("data/loader/shard_dataset.cpp", "ShardDataset::next"),
        ("data/loader/loader.cpp", "ShardLoader::next"),
        ("run/loop/training_run.cpp", "TrainingRun::train_groups"),
        ("run/device/device.cpp", "copy_to_device"),
        ("trainer/decoder_trainer.cpp", "DecoderTrainer::step"),
        ("diffusion/decoder/decoder.cpp", "DecoderImpl::loss"),
        ("model/unet/unet.cpp", "UnetImpl::forward"),
        ("dist/gradient_exchange.cpp", "GradientExchange::send"),
        ("trainer/trainer.cpp", "Trainer::update"),
        ("optim/optimizer.cpp", "Optimizer::step"),
    ]),
    ("a save", "#2e7d32", [
        ("run/checkpoints/run_checkpoints.cpp", "RunCheckpoints::save"),
        ("trainer/state/trainer_state.cpp", "Trainer::state"),
        ("checkpoint/pickle/pth.cpp", "PthSnapshot::take"),
        ("tracker/tracker.cpp", "Tracker::save"),
        ("checkpoint/pickle/pth.cpp", "PthSnapshot::write"),
        ("io/files/atomic_file.cpp", "AtomicFile::commit"),
    ]),
    ("a resume", "#c62828", [
        ("run/checkpoints/run_checkpoints.cpp", "RunCheckpoints::start"),
        ("tracker/tracker.cpp", "Tracker::open"),
        ("tracker/run_folder/decide.cpp", "decide"),
        ("run/checkpoints/run_checkpoints.cpp", "RunCheckpoints::take_up"),
        ("checkpoint/pickle/pth.cpp", "read_pth"),
        ("trainer/state/trainer_state.cpp", "Trainer::load_state"),
    ]),
]
LABEL, LEFT, STATION, HEIGHT, LINE, HEAD = 12, 330, 30, 20, 15, 40


def layer_rows():
    """[(layer, what it holds, layers it uses)], highest first, of those that exist."""
    text = (ROOT / "docs/contributing.md").read_text()
    holds = {row[0].strip(" `"): row[4].strip() for row in
             (line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")) if len(row) > 4}
    rows = []
    for name, layer in read_layers(text).items():
        if layer.later:
            continue
        cmake = ROOT / "lib" / name / "CMakeLists.txt"
        uses = [word for _, words in read_calls(cmake.read_text(), "dalle2_library") for word in keyword_values(words, "USES")] \
            if cmake.exists() else sorted(layer.uses)
        rows.append((name, holds[name], uses))
    return rows


def check_station(path, function):
    text = (ROOT / "lib" / path).read_text()
    if not re.search(rf"^\S[^\n;]*\b{re.escape(function)}\(", text, re.MULTILINE):
        sys.exit(f"lib/{path} does not define {function}: mend the ways in scripts/docs/architecture.py")


# <!-- lib/FILE FUNCTION [NUMBER] --> and the block of code after it: the number tells functions of one name apart.
QUOTE = re.compile(r"(<!-- lib/(\S+) (\S+?)(?: (\d))? -->\n```cpp\n).*?(```\n)", re.DOTALL)


def quoted(page):
    """The page with each quoted function as it is in the code, and how many there are."""
    def text_of(match):
        definition = re.compile(rf"^[^\s/#][^\n;]*\b{re.escape(match[3])}\([^;]*?\{{\n.*?^\}}\n", re.MULTILINE | re.DOTALL)
        found = definition.findall((ROOT / "lib" / match[2]).read_text())
        number = int(match[4] or 1)
        if len(found) < number:
            sys.exit(f"lib/{match[2]} does not define {match[3]}: mend its quotation in docs/architecture.md")
        return match[1] + found[number - 1] + match[5]
    return QUOTE.subn(text_of, page)


def draw():
    rows = layer_rows()
    names = [name for name, _, _ in rows]
    # A row is as high as the most stations that one way has in it, so no two labels touch.
    stations = [(w, i, path.split("/")[0], path, function)
                for w, (_, _, way) in enumerate(WAYS) for i, (path, function) in enumerate(way)]
    for _, _, _, path, function in stations:
        check_station(path, function)
    height = {name: max([2] + [sum(1 for s in stations if s[0] == w and s[2] == name) for w in range(len(WAYS))]) * HEIGHT + 10
              for name in names}
    top, y = {}, HEAD
    for name in names:
        top[name] = y
        y += height[name]
    width = LEFT + len(WAYS) * 270
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 8}" font-family="sans-serif" font-size="{LABEL}">',
           f'<rect width="{width}" height="{y + 8}" fill="#ffffff"/>',
           '<text x="10" y="24" font-weight="bold">layer, and what it holds</text>']
    for row, (name, holds, uses) in enumerate(rows):
        out.append(f'<rect x="0" y="{top[name]}" width="{width}" height="{height[name]}" fill="{"#f4f5fa" if row % 2 else "#e9ebf5"}"/>')
        out.append(f'<text x="10" y="{top[name] + 18}" font-weight="bold">{name}'
                   f'<title>uses {html.escape(", ".join(uses) or "nothing")}</title></text>')
        words, lines = holds.replace("`", "").split(), [""]
        for word in words:
            if len(lines[-1]) + len(word) > 36:
                lines.append("")
            lines[-1] = f"{lines[-1]} {word}".strip()
        shown = lines[:max(1, (height[name] - 8) // LINE)]
        if len(shown) < len(lines):
            shown[-1] += " …"
        for i, line in enumerate(shown):
            out.append(f'<text x="100" y="{top[name] + 18 + i * LINE}" font-size="11" fill="#444">{html.escape(line)}</text>')
    for w, (way, colour, _) in enumerate(WAYS):
        x = LEFT + w * 270 + STATION
        out.append(f'<text x="{x - 10}" y="24" font-weight="bold" fill="{colour}">the path of {way}</text>')
        taken, points = {name: 0 for name in names}, []
        own = [s for s in stations if s[0] == w]
        # Stations of a row stand in the order in which the way comes to them, upwards where it climbs.
        for _, i, layer, _, _ in own:
            points.append((x, top[layer] + 18 + taken[layer] * HEIGHT))
            taken[layer] += 1
        for i in range(len(points) - 1):
            (x1, y1), (x2, y2) = points[i], points[i + 1]
            bend = 8 + min(abs(y2 - y1) // 14, 22)
            out.append(f'<path d="M{x1} {y1 - 4} C{x1 - bend} {y1 - 4} {x2 - bend} {y2 - 4} {x2} {y2 - 4}" fill="none" '
                       f'stroke="{colour}" stroke-opacity="0.5" stroke-width="1.5"/>')
        for i, ((px, py), station) in enumerate(zip(points, own)):
            out.append(f'<circle cx="{px}" cy="{py - 4}" r="8" fill="{colour}"/>')
            out.append(f'<text x="{px}" y="{py}" font-size="10" fill="#fff" text-anchor="middle">{i + 1}</text>')
            out.append(f'<text x="{px + 13}" y="{py}">{html.escape(station[4])}<title>lib/{station[3]}</title></text>')
    out.append("</svg>\n")
    return "\n".join(out)


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3) or sys.argv[-1].startswith("-"):
        sys.exit(__doc__)
    picture = draw()
    if len(sys.argv) == 1:
        sys.stdout.write(picture)
    else:
        pathlib.Path(sys.argv[1]).write_text(picture)
        page = pathlib.Path(sys.argv[2])
        page.write_text(quoted(page.read_text())[0])
