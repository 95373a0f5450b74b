#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Services that fail while checkpoints go to them or come from them, and signals meanwhile: the run ends as it would have, and nothing
is lost. What ends a start is in transfer_test.py."""
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import harness
from bad_server import Server
from harness import BINARY, run
from faulty_service import KINDS, WANDB_RUN, FaultyService, make_certificate
from hub_double import TOKEN, HubDouble
from s3_double import S3Double
from transfer_test import REPO, Services, sha256


QUICK = {"DALLE2_NET_TIMEOUT": "0.6"}
STATUSES = ("401", "403", "404", "409", "412", "429", "500", "502")
PASSING = ("429", "500", "502", "stall", "cut", "refused")  # a later attempt may succeed
WORDS = {**{status: f"status {status}" for status in STATUSES}, "stall": "no byte for 0.6 seconds", "cut": "transfer closed with",
         "refused": "onnect to 127.0.0.1 port", "certificate": "SSL_CERT_FILE", "circle": "more than 10 redirects", "wrong": "its SHA-256 is"}


STOP_AFTER_3_S = """
import subprocess, sys, time
process = subprocess.Popen(sys.argv[1:])
time.sleep(3)
began = time.monotonic()
process.terminate()
code = process.wait()
print(time.monotonic() - began)
sys.exit(code)
"""


def write_run(folder, saver):
    """Makes a folder that of a run with this saver."""
    (folder / "decoder_config.json").write_text(json.dumps({"tracker": {"save": saver}}))
    texts = {key: "" for key in ("began", "job", "began_from", "wandb", "finished")}
    (folder / "run.json").write_text(json.dumps({"id": "a", "token": "b", "home": str(folder), **texts, "has_saved": True,
                                                 "started_in": str(folder), "was_empty": True, "first_line": 0, "copies": {}, "process": {}}))


def wait_in_outbox(folder, service):
    """Makes a folder that of a run with a file that waits for the service."""
    outbox = folder / "outbox"
    outbox.mkdir(parents=True)
    write_run(folder, service.saver())
    (outbox / "00000001_l.pth").write_bytes(b"a checkpoint")
    (outbox / "00000001.json").write_text(json.dumps({"to": service.place(), "target": "l.pth", "kind": "checkpoint",
                                                      "file": "00000001_l.pth"}))


class Table(Services):
    """Each service times each fault, each with one exit code and one text."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.certificate = make_certificate(cls.base)

    def run_cases(self, cases, command, least):
        """`command(service, folder)` gives arguments of the program; cases are (kind, fault, exit code, text)."""
        def run_case(case):
            kind, fault, code, text = case
            folder = self.dir / f"{kind}_{fault}"
            with FaultyService(kind, fault, folder, self.certificate) as service:
                done = run(*command(service, folder), cwd=folder, env={**self.env(), **QUICK, **service.env()}, timeout=100)
            said = done.stdout + done.stderr
            return [] if done.returncode == code and text in said else [f"{case}: exit code {done.returncode}\n{said}"]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            faults = [fault for found in pool.map(run_case, cases) for fault in found]
        self.assertEqual(faults, [], "\n".join(faults))
        self.assertGreaterEqual(len(cases), least)

    def test_a_loader_with_a_fault_ends_the_start(self):
        # The hub and W&B are asked for the file before its bytes; a store is not followed elsewhere.
        words = {("s3", "circle"): "status 302", ("wandb", "wrong"): "its MD5 (base64) is"}
        cases = [(kind, fault, 3 if fault == "wrong" else 6, words.get((kind, fault), WORDS[fault])) for kind in KINDS for fault in WORDS]

        def command(service, folder):
            load = service.loader()
            if service.kind in ("s3", "url"):
                load["sha256"] = sha256(service.content)
            return "--config", self.write(folder / "config.json", load=load)

        self.run_cases(cases, command, least=56)
        for path in self.dir.glob("*_*"):
            self.assertEqual(harness.left_by_refused_start(path / "out"), [], f"{path.name}: the start left its folder")

    def test_a_saver_with_a_fault_at_the_start_ends_it_or_warns(self):
        """Dry runs: they ask what a start asks. What passes is a warning."""
        warning = "The run continues: what it saves waits in its data_path until"
        answers = {("url", status) for status in ("403", "404", "409")}  # a server of files need not know OPTIONS
        cases = [(kind, fault, 0 if (kind, fault) in answers or fault in PASSING else 6,
                  "nothing was trained" if (kind, fault) in answers else warning if fault in PASSING
                  else "status 302" if (kind, fault) == ("s3", "circle") else WORDS[fault])
                 for kind in KINDS for fault in WORDS if fault != "wrong"]
        self.run_cases(cases, lambda service, folder: ("--config", self.write(folder / "config.json", save=service.saver()), "--dry-run"), least=48)

    def test_what_a_saver_cannot_send_waits_and_says_why(self):
        """By `sync`, which sends as a run does."""
        words = {("s3", "circle"): "status 302"}
        cases = [(kind, fault, 6, words.get((kind, fault), WORDS[fault])) for kind in KINDS for fault in WORDS if fault != "wrong"]

        def command(service, folder):
            wait_in_outbox(folder / "out", service)
            return "sync", "out"

        self.run_cases(cases, command, least=48)
        for path in self.dir.glob("*_*"):
            self.assertEqual((path / "out/outbox/00000001_l.pth").read_bytes(), b"a checkpoint", path.name)


    def test_a_server_is_trusted_by_each_variable_that_names_its_certificate(self):
        """By `sync`; with the certificate of another server nothing arrives."""
        (self.dir / "other").mkdir()
        make_certificate(self.dir / "other")
        names = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
        for kind, name in [*(("url", name) for name in names), ("s3", "AWS_CA_BUNDLE"), ("s3", names[0])]:
            folder = self.dir / f"{kind}_{name}"
            with self.subTest(kind, name=name), FaultyService(kind, "certificate", folder, self.certificate) as service:
                wait_in_outbox(folder / "out", service)
                none = {other: "" for other in ("AWS_CA_BUNDLE", *names)}
                for trusted, code in ((self.dir / "other/cert.pem", 6), (self.base / "cert.pem", 0)):
                    env = {**self.env(), **QUICK, **service.env(), **none, name: str(trusted)}
                    done = run("sync", "out", cwd=folder, env=env, check=code)
                    self.assertEqual(f"{name}={trusted}" in done.stderr, code != 0)
                self.assertEqual((folder / "served/l.pth").read_bytes(), b"a checkpoint")


class Faults(Services):
    def test_sync_reads_a_token_where_the_run_did(self):
        (self.dir / "token").write_text(TOKEN)
        (self.dir / "elsewhere").mkdir()
        with HubDouble(lambda handler, step, number: handler.refuse(500)) as hub:
            env = self.env(hub, DALLE2_NET_TIMEOUT="0.2", HF_TOKEN="")
            self.train(self.write(save=self.hub_saver(token_path="token")), env=env)
            hub.mistreat = lambda handler, step, number: False
            run("sync", "../out", cwd=self.dir / "elsewhere", env=env, check=0)
            self.assertEqual(hub.file(REPO, "latest.pth"), self.content())

    def test_a_service_that_is_down_costs_nothing_and_sync_sends_what_waits(self):
        down = [False]

        def mistreat(handler, step, number):
            return down[0] and handler.refuse(500)

        with HubDouble(mistreat) as hub, S3Double(self.dir / "bucket", "my-bucket") as store:
            env = self.env(hub, store, DALLE2_NET_TIMEOUT="0.2")
            config = self.write(save=[self.hub_saver(), {"save_to": "s3", "url": "s3://my-bucket", "save_latest_to": "l.pth"}],
                                upload_deadline_seconds=20)
            hub.mistreat = lambda handler, step, number: handler.refuse(500)
            done = self.train(config, env=env)
            self.assertIn("The run continues: what it saves waits in its data_path until", done.stderr)
            self.assertEqual(self.content("bucket/l.pth"), self.content())  # the other saver was served
            self.assertEqual(self.outbox(), ["00000001.json", "00000001_checkpoint.pth"])
            self.assertIn(f"Error saving checkpoint to {hub.url}/{REPO}/latest.pth: ", done.stderr)
            self.assertIn("1 file in out/outbox could not be sent: ", done.stderr)
            self.assertTrue(any("Error saving checkpoint" in record.get("error", "") for record in harness.records(self.dir / "out")))
            self.assertIn("0 files sent, 1 file left", run("sync", "out", cwd=self.dir, env=env, check=6).stdout)
            shutil.copytree(self.dir / "out", self.dir / "copy")
            self.assertIn("/out, and what waits in it is the original's to send", run("sync", "copy", cwd=self.dir, env=env, check=2).stderr)
            hub.mistreat = mistreat
            self.assertIn("1 file sent, nothing is left", run("sync", "out", cwd=self.dir, env=env, check=0).stdout)
            self.assertEqual(hub.file(REPO, "latest.pth"), self.content())
            self.assertEqual(self.outbox(), [])
            self.assertIn("nowhere: not the folder of a run", run("sync", "nowhere", cwd=self.dir, check=2).stderr)

    def test_signals_during_an_upload_leave_the_file_for_the_next_start(self):
        for kind in ("url", "wandb", "login"):
            with self.subTest(kind), contextlib.ExitStack() as stack:
                folder = self.dir / kind
                service = stack.enter_context(FaultyService("wandb" if kind == "wandb" else "url", "none", folder, None))
                uploads = []

                def stall(handler, step, number):
                    if handler.command == "PUT" and "l.pth" in handler.path:
                        uploads.append(handler.path)
                        time.sleep(30)  # beyond the 10 s that a stopped run sends for
                        handler.close_connection = True
                        return True
                    return False

                save = service.saver()
                if kind == "login":  # the outbox stores neither the login nor the signature
                    save = {"save_to": "url", "url": service.url.replace("//", "//u:canary@") + "/?sig=canary", "save_latest_to": "{epoch}l.pth"}
                load = {"load_from": "local", "file_path": f"{kind}/out/checkpoint.pth", "only_auto_resume": True}
                config = self.write(f"{kind}.json", kind + "/out", save=save, load=load)
                for number in (signal.SIGTERM, signal.SIGKILL):
                    service.double.mistreat = stall
                    before = len(uploads)
                    process = self.start("--config", config, env={**self.env(), **service.env(), "DALLE2_NET_TIMEOUT": "60"})
                    harness.wait_for(process, lambda: len(uploads) > before)
                    time.sleep(0.5)  # all was trained
                    began = time.monotonic()
                    process.send_signal(number)
                    out, _ = process.communicate(timeout=60)
                    self.assertLess(time.monotonic() - began, 15)
                    self.assertEqual(process.returncode, -9 if number == signal.SIGKILL else 0, out)
                    self.assertNotIn("canary", out)
                    if number == signal.SIGTERM:  # all was trained; the wait for the upload ends early
                        self.assertIn("SIGTERM: sending ends in 10 s", out)
                    # A file and its note. If an older file was on its way when the next was saved, both are there.
                    self.assertGreaterEqual(len(self.outbox(kind + "/out")), 2, out)
                    self.assertNotIn(b"canary", b"".join(path.read_bytes() for path in (folder / "out/outbox").iterdir()))
                service.double.mistreat = lambda handler, step, number: False
                self.train(config, env={**self.env(), **service.env()})
                self.assertEqual(self.outbox(kind + "/out"), [])
                kept = service.double.runs[tuple(WANDB_RUN.split("/"))].files["l.pth"] if kind == "wandb" else \
                    self.content(f"{kind}/served/{'0' if kind == 'login' else ''}l.pth")
                self.assertEqual(kept, self.content(kind + "/out/checkpoint.pth"))

    def write_large_entry(self, mib, to, saver):
        """An outbox with a file of which each MiB begins with its number. @return its hash"""
        outbox = self.dir / "out/outbox"
        outbox.mkdir(parents=True)
        write_run(self.dir / "out", saver)
        big = outbox / "00000001_big.pth"
        with open(big, "wb") as file:
            for number in range(mib):
                file.seek(number << 20)
                file.write(b"%d" % number)
            file.truncate(mib << 20)
        (outbox / "00000001.json").write_text(json.dumps({"to": to, "target": "big.pth", "kind": "checkpoint", "file": big.name}))
        return sha256(big.read_bytes())

    def sync_over_a_link_that_breaks(self, service, server, expected, content):
        """200 MiB, and a break after each 40 MiB that come: at most a fifth of them is sent twice."""
        server.break_every = 40 << 20
        run("sync", "out", cwd=self.dir, env=self.env(service, DALLE2_NET_TIMEOUT="10"), check=0)
        self.assertGreater(server.passed, 200 << 20)  # there were breaks
        self.assertLessEqual(server.passed, 1.2 * (200 << 20))
        self.assertEqual(sha256(content()), expected)
        self.assertEqual(self.outbox(), [])

    def test_200_mib_arrive_at_a_store_over_a_link_that_breaks(self):
        with S3Double(self.dir / "bucket", "my-bucket") as store:
            expected = self.write_large_entry(200, f"s3://my-bucket (at {store.url})", {"save_to": "s3", "url": "s3://my-bucket", "save_latest_to": "big.pth"})
            self.sync_over_a_link_that_breaks(store, store, expected, lambda: self.content("bucket/big.pth"))

    def test_200_mib_arrive_at_the_hub_over_a_link_that_breaks(self):
        with HubDouble() as hub:
            expected = self.write_large_entry(200, f"{hub.url}/{REPO}", self.hub_saver(save_latest_to="big.pth"))
            hub.chunk = 6 << 20
            self.sync_over_a_link_that_breaks(hub, hub.store, expected, lambda: hub.file(REPO, "big.pth"))

    def test_a_signal_while_fetching_ends_the_start_within_seconds_and_the_next_one_fetches(self):
        self.train(self.write("first.json", "first"))
        (self.dir / "web/first.pth").write_bytes(self.content("first/checkpoint.pth"))
        faults = {"slow": lambda handler: handler.answer("first.pth", pause=0.05), "silent": lambda handler: handler.stall()}
        with Server(self.dir / "web") as web:
            config = self.write(load={"load_from": "url", "url": f"{web.url}/first.pth"}, epochs=2)
            for number, fault in ((signal.SIGTERM, "slow"), (signal.SIGTERM, "silent"), (signal.SIGINT, "slow"), (signal.SIGKILL, "slow")):
                with self.subTest(number=number, fault=fault):
                    web.mistreat = lambda handler, name, number, fault=fault: faults[fault](handler)
                    before = web.counts.get("first.pth", 0)
                    process = self.start("--config", config, env=self.env(DALLE2_NET_TIMEOUT="60"))
                    harness.wait_for(process, lambda before=before: web.counts.get("first.pth", 0) > before)
                    time.sleep(0.5)
                    began = time.monotonic()
                    process.send_signal(number)
                    out, _ = process.communicate(timeout=60)
                    self.assertLess(time.monotonic() - began, 5)
                    self.assertFalse((self.dir / "out/loaded_checkpoint.pth").exists(), "a part of a file has the whole one's name")
                    if number != signal.SIGKILL:
                        self.assertEqual(process.returncode, 75, out)
                        self.assertIn(f"{number.name}: stopped before the first step: nothing was trained", out)
                        self.assertEqual(harness.left_by_refused_start(self.dir / "out"), [], "the start left its folder")
            web.mistreat = lambda handler, name, number: False
            self.assertIn("having seen", self.train(config, env=self.env()).stdout)
            self.assertEqual(list((self.dir / "out").glob("*.part")), [])

    @harness.needs_own_network
    def test_a_stop_signal_waits_for_no_name_server(self):
        """The question for the name would wait for 30 s."""
        config = self.write(load={"load_from": "url", "url": "https://example.test/f.pth"})
        program = [*harness.OWN_NETWORK, "--silent-resolver", sys.executable, "-c", STOP_AFTER_3_S, BINARY, "--config", config]
        done = subprocess.run(program, cwd=self.dir, env={**os.environ, **self.env(DALLE2_NET_TIMEOUT="60")}, timeout=100,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, 75, done.stdout + done.stderr)
        self.assertLess(float(done.stdout.split()[-1]), 5)


if __name__ == "__main__":
    harness.main()
