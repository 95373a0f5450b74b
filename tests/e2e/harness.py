# SPDX-License-Identifier: MIT
"""What the end-to-end tests share: the binary as a user runs it, in a folder of its own.

Standard library only. DALLE2_TRAIN names the binary; DALLE2_REFERENCE_PYTHON a Python with torch and
dalle2-pytorch, for the tests that let the reference read what we wrote.
"""
import array
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))  # doubles of services
BINARY = os.environ.get("DALLE2_TRAIN", str(ROOT / "build" / "bin" / "dalle2-train"))
REFERENCE_PYTHON = os.environ.get("DALLE2_REFERENCE_PYTHON")
needs_reference = unittest.skipUnless(
    REFERENCE_PYTHON, "needs DALLE2_REFERENCE_PYTHON, a Python with dalle2-pytorch: ./scripts/test.sh --reference installs one")
OWN_NETWORK = ["unshare", "--user", "--map-root-user", "--net", sys.executable,
               str(pathlib.Path(__file__).with_name("own_network.py"))]
HAS_OWN_NETWORK = bool(shutil.which("unshare")) and subprocess.run(OWN_NETWORK, capture_output=True).returncode == 0
needs_own_network = unittest.skipUnless(HAS_OWN_NETWORK, "needs the right to make a network namespace (unshare --net)")


UNET = {"dim": 8, "dim_mults": [1, 2], "cond_dim": 8, "num_resnet_blocks": 1, "resnet_groups": 4, "num_image_tokens": 1, "num_time_tokens": 1}
# In place of a decoder's one unet.
CASCADE = {"unets": [{**UNET, "image_embed_dim": 32}, UNET], "image_size": None, "image_sizes": [8, 16], "sample_timesteps": [3, 3]}


def tell_network(process, what):
    """To a process started with OWN_NETWORK before its command: own_network.py says what can be said."""
    process.stdin.write(what + "\n")
    process.stdin.flush()


def run(*arguments, cwd, env=None, timeout=240, check=None):
    """Runs the binary. `check` is the exit code asked for; another fails the test with the output."""
    full_env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    done = subprocess.run([BINARY, *map(str, arguments)], cwd=cwd, env=full_env, timeout=timeout,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check is not None and done.returncode != check:
        raise AssertionError(f"dalle2-train {' '.join(map(str, arguments))}\n"
                             f"exit {done.returncode}, expected {check}\n{done.stdout}\n{done.stderr}")
    return done


def start(*arguments, cwd, env=None, before=(), **streams):
    """Starts the binary behind the words `before` and waits for nothing. @return the process, whose output is one stream"""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **streams}
    return subprocess.Popen([*before, BINARY, *map(str, arguments)], cwd=cwd, text=True, **streams,
                            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})})


def wait_for(process, is_so, seconds=120):
    """Waits until it is so, which has to be while the process runs."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline and process.poll() is None, f"exit code {process.poll()}, or too late"
        time.sleep(0.01)


def run_reference(program, *arguments, cwd, timeout=300):
    """Runs a program (its text, or a path) with the reference's Python; a failure fails the test. @return what it printed"""
    command = ["-c", program] if isinstance(program, str) else [program]
    done = subprocess.run([REFERENCE_PYTHON, *map(str, [*command, *arguments])], cwd=cwd, timeout=timeout,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)})
    if done.returncode != 0:
        raise AssertionError(f"the reference ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def tracker(out, **save):
    """The section of a run that goes on from what it saved; `save` adds keys of its saver."""
    return {"data_path": str(out), "overwrite_data_path": True, "log": {"log_type": "console", "auto_resume": True},
            "load": {"load_from": "local", "file_path": f"{out}/latest.pth", "only_auto_resume": True},
            "save": {"save_to": "local", "save_latest_to": f"{out}/latest.pth", **save}}


def tiny_config(shards, out, **sections):
    """A decoder that trains in seconds on demo shards of 16 pixels; `sections` override its keys, a None takes one of the decoder away."""
    config = {
        "decoder": {
            "unets": [{**UNET, "image_embed_dim": 32}],
            "image_size": 16, "timesteps": 50, "sample_timesteps": [3], "learned_variance": False,
        },
        "data": {
            "webdataset_base_url": f"{shards}/{{}}.tar", "img_embeddings_url": f"{shards}/img_emb",
            "batch_size": 8, "num_workers": 1, "end_shard": demo_shard_count(shards) - 1,
            "splits": {"train": 0.75, "val": 0.15, "test": 0.1},
            "preprocessing": {"ToTensor": True},
        },
        "train": {"epochs": 1, "lr": 1e-3, "device": "cpu", "n_sample_images": 2,
                  "save_every_n_samples": 100000, "ema_update_after_step": 1, "ema_update_every": 1},
        "evaluate": {},
        "tracker": tracker(out, save_best_to=f"{out}/best.pth"),
        "seed": 0,
    }
    for section, keys in sections.items():
        if isinstance(keys, dict) and isinstance(config.get(section), dict):
            config[section].update(keys)
        else:
            config[section] = keys
    config["decoder"] = {key: value for key, value in config["decoder"].items() if value is not None}
    return config


def demo_shard_count(shards):
    return len(list(pathlib.Path(shards).glob("[0-9]*.tar")))


def write_config(path, config):
    pathlib.Path(path).write_text(json.dumps(config, indent=2))
    return str(path)


def without_comments(text):
    return re.sub(r"(^|\s)//.*$", "", text, flags=re.MULTILINE)


def inspect(path, cwd):
    """Entries of a checkpoint by name."""
    return {entry["name"]: entry for entry in json.loads(run("inspect", path, "--json", cwd=cwd, check=0).stdout)["entries"]}


def read_safetensors(path):
    """Every tensor of a .safetensors file as (dtype, bytes) by its name, and the file's metadata."""
    content = pathlib.Path(path).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    metadata = header.pop("__metadata__", {})
    return {name: (entry["dtype"], content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}, metadata


def checkpoint_content(path, cwd):
    """Every tensor of a checkpoint as (dtype, bytes) by its name, and every other value but the config, which names its
    files, the id of the run and how long its log was."""
    out = pathlib.Path(cwd) / "content.safetensors"
    run("convert", path, out, "--overwrite", cwd=cwd, check=0)
    tensors, metadata = read_safetensors(out)
    tree = json.loads(metadata.get("dalle2.checkpoint", "{}"))  # a file of weights alone has none
    tree.pop("config", None)
    for key in ("run_id", "log_lines"):
        tree.get("dalle2_train", {}).pop(key, None)
    return tensors, tree


def records(data_path):
    """The records of a log as its readers see it: without torn lines, those that a resume passed over, and their times."""
    kept = []
    for line in (pathlib.Path(data_path) / "log.jsonl").read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if record:
            record.pop("time", None)
        if record and "resumed_from_line" in record:
            kept[record["resumed_from_line"]:] = [None] * (len(kept) - record["resumed_from_line"])
            record = None
        kept.append(record)
    return [record for record in kept if record is not None]


def saved_state(path, cwd):
    """Every tensor's bytes (hashed) and every other value of a checkpoint but the config."""
    tensors, tree = checkpoint_content(path, cwd)
    return {name: hashlib.sha256(content).hexdigest() for name, (_, content) in tensors.items()}, tree


def logged_losses(data_path):
    """The records of training and validation without what depends on the clock."""
    timed = ("Samples per second", "Seconds ", "Memory ")
    return [{key: value for key, value in record.items() if not key.startswith(timed)}
            for record in records(data_path) if any("Loss" in key for key in record)]


def stop_when(config, cwd, reached, env=None):
    """Starts the run and sends SIGTERM as soon as `reached(line)` holds for a line it printed."""
    process = start("--config", config, cwd=cwd, env=env)
    output, sent = [], False
    for line in process.stdout:
        output.append(line)
        if not sent and reached(line):
            process.send_signal(signal.SIGTERM)
            sent = True
    process.stdout.close()
    if process.wait(timeout=60) != 75:
        raise AssertionError("".join(output))


def at_step_of_epoch(epoch, step):
    """Whether the lines of the console so far have the loss of that update of the epoch: the first, the eleventh, ..."""
    losses_shown = None

    def reached(line):
        nonlocal losses_shown
        if f"Starting epoch {epoch}" in line:
            losses_shown = 0
        elif losses_shown is not None and re.match(r"step \d+  loss ", line):
            losses_shown += 1
        return losses_shown == step // 10 + 1
    return reached


def left_by_refused_start(folder):
    """What lies in data_path after a start that was refused: the lock and what was fetched are no trace of a run."""
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*")
                  if path.name not in ("run.lock", "loaded_checkpoint.pth"))


def free_port():
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return some.getsockname()[1]


def rank_variables(rank, size, port, host="127.0.0.1"):
    """The environment in which a launcher starts one of the processes of a run."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": host,
            "MASTER_PORT": str(port)}


def ranks_of(launcher):
    """Process numbers by rank."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (folder / "environ").read_bytes().split(b"\0") if parent == launcher.pid else []
        except OSError:  # it has ended meanwhile
            continue
        found.update({int(v[5:]): int(folder.name) for v in variables if v.startswith(b"RANK=")})
    return found


def read_npy(path):
    """Shape and float32 values of a version 1 .npy file."""
    content = pathlib.Path(path).read_bytes()
    assert content[:6] == b"\x93NUMPY", path
    length = struct.unpack("<H", content[8:10])[0]
    header = eval(content[10:10 + length], {"__builtins__": {}}, {"True": True, "False": False})
    assert header["descr"] == "<f4" and not header["fortran_order"], header
    return header["shape"], array.array("f", content[10 + length:])


def write_npy(path, shape, values):
    header = repr({"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}).encode()
    header += b" " * ((64 - (10 + len(header) + 1) % 64) % 64) + b"\n"
    pathlib.Path(path).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header +
                                   array.array("f", values).tobytes())


def png(rows, depth=8, colour_type=2):
    """The bytes of a picture. @param rows of integers, the channels of the pixels one after another"""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour_type]
    head = struct.pack(">IIBBBBB", len(rows[0]) // channels, len(rows), depth, colour_type, 0, 0, 0)
    data = b"".join(b"\0" + struct.pack(f">{len(row)}{'H' if depth == 16 else 'B'}", *row) for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def write_white(folder, count, side):
    """White pictures in a folder, which is made if it is not there. @return the folder"""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:02}.png").write_bytes(png([[255] * 3 * side] * side))
    return folder


class Folders(unittest.TestCase):
    """A test class with a folder, and a fresh one in it for each test."""
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="dalle2-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.base, ignore_errors=True)

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(dir=self.base))

    def train(self, config, *arguments, check=0, **kwargs):
        return run("--config", config, *arguments, cwd=self.dir, check=check, **kwargs)

    def refuse_start(self, config, out, code, text):
        """A start and a dry run end with the code, say why, and leave nothing."""
        for more in ([], ["--dry-run"]):
            self.assertIn(text, " ".join(self.train(config, *more, check=code).stderr.split()))
            self.assertEqual(left_by_refused_start(self.dir / out), [])

    def logged(self, out, key):
        """What the records of a run have under the key."""
        return [record[key] for record in records(self.dir / out) if key in record]

    def end_of(self, process, code):
        """Waits for it. @return what it said"""
        output = process.communicate(timeout=200)[0]
        self.assertEqual(process.returncode, code, output)
        return output

    def start(self, *arguments, **kwargs):
        """As `start` does, in the folder of the test, at the end of which the process is gone."""
        process = start(*arguments, cwd=self.dir, **kwargs)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process


class EndToEnd(Folders):
    """With demo shards of 16 pixels, made once."""
    demo_pictures = 96

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shards = cls.base / "shards"
        run("shards", "demo", "--out", cls.shards, "--num", cls.demo_pictures, "--image-size", 16, cwd=cls.base, check=0)

    def config(self, name="config.json", out="out", shards=None, **sections):
        return write_config(self.dir / name, tiny_config(shards or self.shards, out, **sections))

    def train_until(self, config, text):
        """Trains until a line of the output has the text, and asks for a stop then."""
        process = start("--config", config, cwd=self.dir)
        for line in process.stdout:
            if text in line:
                process.send_signal(signal.SIGTERM)
                break
        self.end_of(process, 75)


def main():
    """Runs the file's tests. Ends with 77, "skipped" for ctest, where none could run, and with 1 where none was found."""
    result = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    if not result.testsRun and not result.skipped:
        sys.exit("no test of this file was asked for: " + " ".join(sys.argv))
    sys.exit(77 if len(result.skipped) >= result.testsRun else 0)
