#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training from shards behind a web server that cuts, refuses, stalls and dawdles."""
import hashlib
import http.server
import pathlib
import socket
import threading
import time
import unittest

import harness


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder with ranges; `mistreat(handler, name, number)` may answer itself and return True."""
    daemon_threads = True

    def __init__(self, folder, mistreat=lambda handler, name, number: False):
        self.folder, self.mistreat = pathlib.Path(folder), mistreat
        self.counts, self.lock = {}, threading.Lock()
        self.ranges = 0
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *args):
        self.ended.set()
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        name = self.path.split("?")[0].lstrip("/")
        with self.server.lock:
            number = self.server.counts[name] = self.server.counts.get(name, 0) + 1
        if not self.server.mistreat(self, name, number):
            self.answer(name)

    def refuse(self, status, **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def answer(self, name, most=None, pause=0.0, ranges=True):
        """The file, `most` bytes of it before the connection is cut, with a pause after each KiB."""
        path = self.server.folder / name
        if not path.is_file():
            return self.refuse(404)
        content = path.read_bytes()
        start = 0
        if ranges and "Range" in self.headers:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            with self.server.lock:
                self.server.ranges += 1
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if ranges:
            self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        body = content[start:] if most is None else content[start:start + most]
        step = 1024 if pause else len(body)
        for at in range(0, len(body), max(step, 1)):
            self.wfile.write(body[at:at + step])
            time.sleep(pause)
        if most is not None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        return True

    def stall(self):
        self.server.ended.wait(120)
        self.close_connection = True
        return True


class RemoteShards(harness.EndToEnd):
    def remote(self, server, name="remote.json", out="remote", **data):
        config = harness.tiny_config(self.shards, out)
        config["data"].update(webdataset_base_url=f"{server.url}/{{}}.tar", num_workers=2, **data)
        return harness.write_config(self.dir / name, config)

    def weights(self, out):
        harness.run("convert", self.dir / out / "latest.pth", self.dir / f"{out}.safetensors", "--ema",
                    cwd=self.dir, check=0)
        return (self.dir / f"{out}.safetensors").read_bytes()

    def env(self, **more):
        return {"DALLE2_NET_TIMEOUT": "2", "DALLE2_TRACE_SAMPLES": str(self.dir / "trace"), **more}

    def trace(self):
        path = self.dir / "trace.rank0"
        text = path.read_text()
        path.unlink()
        return text

    def test_a_bad_network_gives_the_weights_of_local_shards(self):
        def mistreat(handler, name, number):
            if number == 1:
                return handler.refuse(429, Retry_After="1")
            if number == 2:
                return handler.refuse(500)
            if number == 3:
                return handler.answer(name, most=3000)
            if number == 4:
                return handler.answer(name, most=5000, ranges=False)
            return handler.answer(name, pause=0.002)

        self.train(self.config(out="local"), env=self.env())
        expected = self.trace()
        with Server(self.shards, mistreat) as server:
            done = self.train(self.remote(server), env=self.env())
            self.assertGreater(server.ranges, 0)
        self.assertEqual(self.trace(), expected)
        self.assertEqual(self.weights("remote"), self.weights("local"))
        self.assertIn("status 429", done.stderr)
        self.assertIn("status 500", done.stderr)
        self.assertNotIn("left out", done.stdout + done.stderr)

    def test_a_pipe_gives_the_weights_of_local_shards(self):
        self.train(self.config(out="local"))
        config = harness.tiny_config(self.shards, "remote")
        config["data"]["webdataset_base_url"] = f"pipe:gzip -c {self.shards}/{{}}.tar"
        self.train(harness.write_config(self.dir / "pipe.json", config))
        self.assertEqual(self.weights("remote"), self.weights("local"))

    def test_an_absent_shard_is_left_out_and_too_many_end_the_run(self):
        train = harness.run("--config", self.config(), "--dry-run", cwd=self.dir, check=0)
        self.assertIn("samples", train.stdout)
        absent = []

        def mistreat(handler, name, number):
            with handler.server.lock:
                if not absent:
                    absent.append(name)
            return name == absent[0] and handler.refuse(404)

        with Server(self.shards, mistreat) as server:
            done = self.train(self.remote(server), env=self.env())
            self.assertIn(f"{server.url}/{absent[0]}: the server answers with status 404", done.stderr)
            self.assertIn("absent shard left out", done.stderr)
        with Server(self.dir) as server:
            done = self.train(self.remote(server, out="none", max_bad_fraction=0.0), check=3, env=self.env())
            self.assertIn("max_bad_fraction", done.stderr)
        with Server(self.dir) as server:
            done = self.train(self.remote(server, out="none"), check=3, env=self.env())
            self.assertIn("no usable sample", done.stderr)

    def test_an_endless_stall_ends_within_ten_times_the_timeout(self):
        with Server(self.shards, lambda handler, name, number: handler.stall()) as server:
            begin = time.monotonic()
            done = self.train(self.remote(server), check=6, env=self.env())
            self.assertLess(time.monotonic() - begin, 20 + 5)  # 5 to start
        self.assertIn("no byte for 2 seconds", done.stderr)


if __name__ == "__main__":
    harness.main()
