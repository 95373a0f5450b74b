# SPDX-License-Identifier: MIT
"""A double of each service that has a fault: it answers every request with it."""
import contextlib
import ssl
import subprocess
import time

import harness
from bad_server import Server
from hub_double import HubDouble, Repo
from s3_double import S3Double
from wandb_double import WandbDouble

REPO, WANDB_RUN, NAME = "owner/decoder", "team/project/run1", "f.pth"
KINDS = ("hub", "s3", "url", "wandb")


def make_certificate(folder):
    """One that nobody vouches for. @return the context of a server that shows it"""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def show_certificate(server, context):
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)


def misbehave(handler, fault):
    """A status, or "stall", "cut" (in the middle of an answer) or "circle" (of redirects)."""
    handler.close_connection = True
    if fault == "stall":
        time.sleep(2)
        return True
    if fault == "cut":
        answer = b"" if handler.command == "HEAD" else b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"
    else:
        status = 302 if fault == "circle" else int(fault)
        more = f"Location: {handler.path}\r\n" if fault == "circle" else "Retry-After: 1\r\n" if fault == "429" else ""
        answer = f"HTTP/1.1 {status} No\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
    handler.wfile.write(answer)
    handler.wfile.flush()
    return True


class FaultyService:
    """Used as a context. Without the fault it would give and take files."""

    def __init__(self, kind, fault, folder, certificate):
        self.kind, self.fault, self.folder, self.certificate = kind, fault, folder, certificate
        self.content = b"the content of a file"

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        folder = self.folder / "served"
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(self.content)
        if self.kind == "hub":
            self.double = self.stack.enter_context(HubDouble())
            repo = self.double.repos[REPO] = Repo(private=False)
            repo.files["main"][NAME] = self.content
            repo.lfs_paths.add(NAME)
            server = self.double.server
        elif self.kind == "wandb":
            self.double = self.stack.enter_context(WandbDouble())
            self.double.run(*WANDB_RUN.split("/")).files[NAME] = self.content
            server = self.double.server
        else:
            make = Server if self.kind == "url" else lambda folder: S3Double(folder, "my-bucket")
            self.double = server = self.stack.enter_context(make(folder))
        self.double.mistreat = self.mistreat
        if self.kind == "s3":
            self.double.mistreat_list = lambda handler: self.mistreat(handler, "list", 1)
        self.url = self.double.url
        if self.fault == "certificate":
            show_certificate(server, self.certificate)
            self.url = self.url.replace("http://", "https://")
        if self.fault == "refused":
            self.url = f"http://127.0.0.1:{harness.free_port()}"
        return self

    def __exit__(self, *args):
        self.stack.close()

    def mistreat(self, handler, step, number):
        if self.fault == "wrong":
            return self.answer_wrong(handler, step)
        if self.fault in ("none", "certificate", "refused"):
            return False
        if handler.command == "PUT" and self.kind == "url":
            handler.body()
        return misbehave(handler, self.fault)

    def answer_wrong(self, handler, step):
        """Other bytes than the service has told of."""
        other = self.content[::-1]
        if self.kind == "hub":
            return step == "store" and handler.send_range(other, '"other"')
        if self.kind == "wandb":
            return step == "storage" and handler.bytes(200, other)
        (self.folder / "served" / NAME).write_bytes(other)
        return False

    def env(self):
        names = {"hub": "HF_ENDPOINT", "s3": "AWS_ENDPOINT_URL_S3", "wandb": "WANDB_BASE_URL"}
        own = {} if self.kind == "url" else self.double.env()
        return {**own, names.get(self.kind, "UNUSED"): self.url}

    def loader(self):
        return {"hub": {"load_from": "huggingface", "huggingface_repo": REPO, "huggingface_file_path": NAME},
                "s3": {"load_from": "url", "url": f"s3://my-bucket/{NAME}"}, "url": {"load_from": "url", "url": f"{self.url}/{NAME}"},
                "wandb": {"load_from": "wandb", "wandb_file_path": NAME, "wandb_run_path": WANDB_RUN}}[self.kind]

    def saver(self):
        return {"save_latest_to": "l.pth",
                **{"hub": {"save_to": "huggingface", "huggingface_repo": REPO, "model_card": False},
                   "s3": {"save_to": "s3", "url": "s3://my-bucket"}, "url": {"save_to": "url", "url": self.url},
                   "wandb": {"save_to": "wandb", "wandb_run_path": WANDB_RUN}}[self.kind]}

    def place(self):
        """As the outbox names it."""
        return {"hub": f"{self.url}/{REPO}", "s3": f"s3://my-bucket (at {self.url})", "url": self.url,
                "wandb": f"{self.url}/{WANDB_RUN.replace('/run1', '/runs/run1')}"}[self.kind]
