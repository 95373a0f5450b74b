# SPDX-License-Identifier: MIT
"""A web server on the loopback that cuts, refuses, stalls and dawdles as a test asks it to."""
import hashlib
import http.server
import pathlib
import socket
import ssl
import sys
import threading
import time
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.note()
        name = self.name()
        if not self.mistreated(name):
            self.answer(name)

    def name(self):
        return urllib.parse.unquote(self.path.split("?")[0].lstrip("/"))

    def mistreated(self, name):
        """Whether the test has answered this request itself, by its number."""
        with self.server.lock:
            number = self.server.counts[name] = self.server.counts.get(name, 0) + 1
        return self.server.mistreat(self, name, number)

    def body(self):
        """What was sent, unless the link breaks meanwhile: it does so after each `break_every` bytes."""
        size, every = int(self.headers.get("Content-Length", 0)), self.server.break_every
        with self.server.lock:
            left = every - self.server.passed % every if every else size + 1
            self.server.passed += min(size, left)
        content = self.rfile.read(min(size, left))
        if size >= left:
            raise ConnectionAbortedError
        return content

    def lose(self):
        """The answer gets lost: the connection ends without it."""
        self.close_connection = True
        return True

    def note(self):
        """Keeps what came, for tests that look for secrets."""
        with self.server.lock:
            self.server.requests.append((self.command, self.path, dict(self.headers)))

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def refuse(self, status, **headers):
        return self.reply(status, **headers)

    def answer(self, name, most=None, pause=0.0, ranges=True):
        """The file, `most` bytes of it before the connection is cut, with a pause after each KiB."""
        path = self.server.folder / name
        if path.is_dir():
            return self.index(path)
        if not path.is_file():
            return self.refuse(404)
        content = path.read_bytes()
        start, end, part = 0, len(content), False
        if ranges and "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start, part = int(first), last or first != "0"
            end = min(int(last) + 1, end) if last else end
            with self.server.lock:
                self.server.ranges += 1
        self.send_response(206 if part else 200)
        self.send_header("Content-Length", str(end - start))
        if ranges:
            self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        if part:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.end_headers()
        body = content[start:end] if most is None else content[start:min(end, start + most)]
        step = 1024 if pause else len(body)
        for at in range(0, len(body), max(step, 1)):
            self.wfile.write(body[at:at + step])
            time.sleep(pause)
        if most is not None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        return True

    def do_PUT(self):
        """A server of files, without folders that were not made by MKCOL (WebDAV)."""
        self.note()
        name = self.name()
        if self.mistreated(name):
            return None
        content = self.body()
        path = self.server.folder / name
        if not path.parent.is_dir():
            return self.refuse(409)
        path.write_bytes(content)
        return self.refuse(201)

    def do_MKCOL(self):
        self.note()
        path = self.server.folder / self.name()
        if path.exists():
            return self.refuse(405)
        if not path.parent.is_dir():
            return self.refuse(409)
        path.mkdir()
        return self.refuse(201)

    def do_OPTIONS(self):
        self.note()
        return self.server.mistreat(self, "OPTIONS", 1) or self.refuse(200)

    def index(self, folder):
        links = "".join(f'<li><a href="{urllib.parse.quote(p.name)}">{p.name}</a></li>' for p in sorted(folder.iterdir()))
        return self.page(200, f"<html><ul><li><a href=\"../\">up</a></li>{links}</ul></html>", "text/html")

    def page(self, status, text, kind="application/xml", **headers):
        return self.reply(status, text.encode(), Content_Type=kind, **headers)

    def page_after(self, seconds, text):
        """Status 200 at once, then white space as long as a store is at work, then the page."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in [*[" "] * round(seconds / 0.2), text]:
            self.wfile.write(f"{len(piece):x}\r\n{piece}\r\n".encode())
            self.wfile.flush()
            time.sleep(0 if piece is text else 0.2)
        self.wfile.write(b"0\r\n\r\n")
        return True

    def stall(self):
        self.server.ended.wait(120)
        self.close_connection = True
        return True


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder with ranges; `mistreat(handler, name, number)` may answer itself and return True."""
    daemon_threads = True
    request_queue_size = 64
    handler = Handler

    def __init__(self, folder, mistreat=lambda handler, name, number: False):
        self.folder, self.mistreat = pathlib.Path(folder), mistreat
        self.counts, self.lock = {}, threading.Lock()
        self.ranges = 0
        self.break_every, self.passed = None, 0  # bytes of the bodies that come
        self.requests = []
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", 0), self.handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (ConnectionError, ssl.SSLError)):  # clients may leave
            super().handle_error(request, client_address)

    def __exit__(self, *args):
        self.ended.set()
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"
