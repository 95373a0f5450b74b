# SPDX-License-Identifier: MIT
"""Events as the tensorboard package serialises and frames them, byte for byte.

    python tests/parity/make_events.py [--seed N] [--out DIR]      writes DIR/events/events.json
"""
import io
import json
import random

from PIL import Image
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from case_files import folder_and_options

MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
TAGS = ["Unet 0 Training Loss", "loss", "a/b/c", "äöü €", "x" * 200]


def png(random_, mode):
    size = random_.randint(1, 9), random_.randint(1, 9)
    picture = Image.frombytes(mode, size, random_.randbytes(size[0] * size[1] * MODES[mode]))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue(), size


def make_value(random_, kind):
    """A description for the test and the Summary.Value it stands for."""
    tag = random_.choice(TAGS)
    value = summary_pb2.Summary.Value(tag=tag)
    if kind == "scalar":
        number = random_.choice([random_.gauss(0, 1), 0.0, 1e-30, 1e38, float(random_.randint(1, 10**6))])
        value.simple_value = number
        return {"kind": kind, "tag": tag, "value": number}, value
    if kind == "text":
        text = random_.choice(["0. a red circle\n1. zwei Kreise äöü\n", "", "# title\n" * random_.randint(1, 60)])
        value.tensor.CopyFrom(tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING, string_val=[text.encode()],
            tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])))
        value.metadata.plugin_data.plugin_name = "text"
        return {"kind": kind, "tag": tag, "value": text}, value
    mode = random_.choice(list(MODES))
    content, (width, height) = png(random_, mode)
    value.image.CopyFrom(summary_pb2.Summary.Image(
        width=width, height=height, colorspace=MODES[mode], encoded_image_string=content))
    return {"kind": kind, "tag": tag, "value": content.hex()}, value


def main():
    folder, options = folder_and_options("events", __doc__)
    random_ = random.Random(options.seed)
    cases = []
    for _ in range(12):
        made = [make_value(random_, random_.choice(["scalar", "scalar", "text", "image"]))
                for _ in range(random_.randint(1, 3))]
        event = event_pb2.Event(wall_time=random_.uniform(1e9, 2e9),
                                step=random_.choice([1, 127, 128, 10**6, 2**40]),
                                summary=summary_pb2.Summary(value=[value for _, value in made]))
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        cases.append({"wall_time": event.wall_time, "step": event.step,
                      "values": [description for description, _ in made], "record": record.getvalue().hex()})
    (folder / "events.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
