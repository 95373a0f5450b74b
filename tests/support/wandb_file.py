# SPDX-License-Identifier: MIT
"""Reads the `run-<id>.wandb` of a Weights & Biases run: a log of LevelDB's format with a protobuf message a record.

    records = wandb_file.read(path)    [(kind, fields), ...]; a field is a list of integers or bytes by its number
    run = wandb_file.Folder(path)      an offline folder: what it says of the run
"""
import json
import pathlib
import zlib

BLOCK, HEAD = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
KINDS = {2: "history", 3: "summary", 6: "files", 7: "stats", 12: "metric", 13: "output", 17: "run", 18: "exit", 21: "header", 23: "preempting"}


def log_records(content):
    """The bytes of each record. A part that was cut off at the end is no record; any other fault is an AssertionError."""
    assert content[:7] == b":W&B\xe1\xbe\x00", content[:7]
    at, record = 7, b""
    while at < len(content):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            assert not any(content[at:at + left])
            at += left
            continue
        checksum, length, kind = int.from_bytes(content[at:at + 4], "little"), int.from_bytes(content[at + 4:at + 6], "little"), content[at + 6]
        piece = content[at + HEAD:at + HEAD + length]
        if len(piece) < length:
            return
        assert length <= left - HEAD and zlib.crc32(bytes([kind]) + piece) == checksum, at
        assert (kind in (FULL, FIRST)) == (not record) or kind in (MIDDLE, LAST), at
        record += piece
        at += HEAD + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(message):
    """{number: [values]} of a protobuf message."""
    found, at = {}, 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 0:
            value, at = varint(message, at)
        else:
            assert tag & 7 == 2, tag
            length, at = varint(message, at)
            value, at = message[at:at + length], at + length
            assert len(value) == length
        found.setdefault(tag >> 3, []).append(value)
    return found


def items(message, number=1):
    """Names and values of a history row, a summary, a config or figures of the machine. NaN is the text "NaN", which equals itself."""
    result = {}
    for item in fields(message).get(number, []):
        item = fields(item)
        result[item[1][0].decode()] = json.loads(item[16][0], parse_constant=str)
    return result


def read(path):
    records = []
    for number, record in enumerate(log_records(pathlib.Path(path).read_bytes()), start=1):
        record = fields(record)
        assert record.pop(1) == [number], (number, record)
        (kind, [message]), = record.items()
        records.append((KINDS[kind], message))
    return records


class Folder:
    """What an offline folder says of its run."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        file, = self.path.glob("run-*.wandb")
        self.history, self.stats, self.metrics, self.names = [], [], [], []
        self.summary, self.exit_code, self.preempting = {}, None, False
        self.console = []  # (line, whether it is of stderr)
        for kind, message in read(file):
            found = fields(message)
            if kind == "run":
                self.id, self.entity, self.project = (found[number][0].decode() for number in (1, 2, 3))
                self.config, self.resume = items(found[4][0]), found.get(24, [0])[0] == 1
                self.name = found.get(8, [b""])[0].decode()
                self.tags = [tag.decode() for tag in found.get(10, [])]
            elif kind == "history":
                row = items(message)
                assert row["_step"] == fields(found[2][0]).get(1, [0])[0]
                self.history.append(row)
            elif kind == "summary":
                self.summary.update(items(message))
            elif kind == "stats":
                self.stats.append(items(message, 3))
            elif kind == "metric":
                self.metrics.append((found[1][0].decode(), found.get(4, [b""])[0].decode()))
            elif kind == "files":
                self.names.append(fields(found[1][0])[1][0].decode())
            elif kind == "output":
                self.console.append((found[3][0].decode(), found.get(1, [0])[0] == 0))
            elif kind == "exit":
                self.exit_code = found.get(1, [0])[0]
            elif kind == "preempting":
                self.preempting = True

    @property
    def files(self):
        return {name: (self.path / "files" / name).read_bytes() for name in self.names}
