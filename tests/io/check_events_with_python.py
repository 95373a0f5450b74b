# SPDX-License-Identifier: MIT
"""The tensorboard package reads our event files: scalars, pictures, texts; files cut at any byte; a
resumed run, of which it forgets the steps that were done twice.

    python tests/io/check_events_with_python.py build/bin/test_io
"""
import io
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("skipped: this Python has no tensorboard package")
    sys.exit(77)
from tensorboard.util import tensor_util


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    return events


def check_content(folder):
    events = read(folder)
    scalars = [(event.step, event.value) for event in events.Scalars("Unet 0 Training Loss")]
    assert scalars == [(0, 0), (10, 10), (20, 20), (30, 130), (40, 140), (50, 150)], scalars
    images = events.Images("Train Samples/0")
    assert [(image.step, image.width, image.height) for image in images] == [(s, 2, 1) for s in range(0, 60, 10)]
    content = images[0].encoded_image_string
    try:
        from PIL import Image
        assert list(Image.open(io.BytesIO(content)).convert("RGB").tobytes()) == [255, 0, 0, 0, 0, 255]
    except ImportError:
        assert content.startswith(b"\x89PNG")
    texts = events.Tensors("Train Samples/captions")
    assert {text.step for text in texts} == set(range(0, 60, 10))  # texts are never forgotten: two come twice
    assert tensor_util.make_ndarray(texts[0].tensor_proto).tolist() == ["0. a café\n".encode()]
    assert events.SummaryMetadata("Train Samples/captions").plugin_data.plugin_name == "text"


def check_torn(file, folder):
    """Cut at every byte, the file gives the events that are whole, and no error."""
    content = file.read_bytes()
    torn = folder / "torn" / file.name
    torn.parent.mkdir()
    counts = []
    for size in range(len(content) + 1):
        torn.write_bytes(content[:size])
        events = read(torn)
        counts.append(len(events.Scalars("Unet 0 Training Loss")) if events.Tags()["scalars"] else 0)
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 5, counts
    print(f"read at {len(counts)} lengths")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        events = folder / "events"
        subprocess.run([os.path.abspath(sys.argv[1]), "[.python]"], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, DALLE2_PYTHON_CHECK_DIR=str(events)))
        check_content(events)
        first = min(events.iterdir(), key=lambda path: int(path.name.rsplit(".", 1)[1]))
        check_torn(first, folder)
    print("the tensorboard package reads our event files")


if __name__ == "__main__":
    main()
