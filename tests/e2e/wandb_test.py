#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Weights & Biases: run folders, the live service, and what happens when it refuses, stalls or goes away.

Most tests start build/bin/log_like_a_run, which logs as a run does without training; a double stands for the service. The real
client is the judge in the tests "by_the_reference".
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import harness
import wandb_file
from harness import BINARY, REFERENCE_PYTHON, needs_reference
from wandb_double import KEY, WandbDouble

LOG_LIKE_A_RUN = pathlib.Path(BINARY).with_name("log_like_a_run")
LOG = {"log_type": "wandb", "wandb_entity": "somebody", "wandb_project": "pictures"}
TIMES = ("_timestamp", "_runtime")
CONFIG = {"train": {"lr": 0.5}, "seed": 7, "NumProcesses": 1}  # as log_like_a_run says it
CONSOLE = ["[track] Saving checkpoint locally", "[track] error: the disk is slow", "[track] Saved checkpoint.pth, model.pth in out",
           "[track] Saved checkpoint to local path out/latest.pth"]


def without_times(rows):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def rest_of(path):
    """The folder that a line of the log names."""
    found = re.findall(r"Upload it with `wandb sync ([^`]*)`", path)
    assert len(found) == 1, path
    return found[0]


class Wandb(harness.Folders):
    def setUp(self):
        super().setUp()
        (self.dir / "home").mkdir()

    def double(self):
        double = WandbDouble()
        self.addCleanup(double.__exit__)
        return double

    def env(self, more=None):
        """Nothing of this machine's user."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("WANDB") and key != "NETRC"}
        return {**env, "HOME": str(self.dir / "home"), "DALLE2_NET_TIMEOUT": "1", "OMP_NUM_THREADS": "1", **(more or {})}

    def command(self, records, log=None, out="out", pause=0.0):
        (self.dir / "log.json").write_text(json.dumps(log or LOG))
        return [str(LOG_LIKE_A_RUN), "log.json", out, str(records), str(pause)]

    def log(self, records, env, *, check=0, log=None, out="out", pause=0.0):
        done = subprocess.run(self.command(records, log, out, pause), cwd=self.dir, env=self.env(env), timeout=100, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, check, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def folders(self, folder="wandb"):
        return [wandb_file.Folder(path) for path in sorted((self.dir / folder).glob("offline-run-*"))]

    def logged(self, out="out"):
        """The rows that a run has to have: those of log.jsonl, without the one that names the run."""
        records = []
        for line in (self.dir / out / "log.jsonl").read_text().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:  # torn by a kill
                continue
        return [record for record in records if "step" in record and "run_id" not in record]

    def check_rows(self, rows, logged):
        """Each record is a row, in order, with our own step beside the service's, which rises."""
        self.assertEqual([row["step"] for row in rows], [record["step"] for record in logged])
        steps = [row["_step"] for row in rows]
        self.assertEqual(steps, sorted(set(steps)))
        for row, record in zip(rows, logged):
            self.assertEqual(row["_timestamp"], record["time"])
            for key, value in record.items():
                if key == "time":
                    continue
                if not isinstance(value, list):
                    self.assertEqual(row[key], "NaN" if value is None else value)
                    continue
                self.assertEqual(row[key]["_type"], "images/separated")
                self.assertEqual(row[key]["captions"], [picture["caption"] or "" for picture in value])
                self.assertEqual((row[key]["width"], row[key]["height"], row[key]["count"]), (2, 3, len(value)))

    def check_console(self, content):
        """Every line that log_like_a_run prints after the logger began, as it was printed."""
        self.assertEqual(content.decode().splitlines(), CONSOLE)

    def check_files(self, files, rows, out="out"):
        self.assertEqual(files["decoder_config.json"], b'{"seed": 7}')
        self.assertIn("host", json.loads(files["wandb-metadata.json"]))
        names = [name for row in rows for name in row.get("Train Samples", {}).get("filenames", [])]
        self.assertEqual(len(set(names)), len(names))
        stored = sorted((self.dir / out / "images").iterdir())
        self.assertEqual(len(stored), len(names))
        for name in names:
            self.assertEqual(files[name], stored[0].read_bytes())  # they are all the same picture

    def log_until(self, done, env, *, log=None, pause=0.01):
        """Starts a run that logs until it is stopped, and waits for what `done` says. @return the process"""
        process = subprocess.Popen(self.command(10**6, log, pause=pause), cwd=self.dir, env=self.env(env), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        harness.wait_for(process, done)
        return process


class Offline(Wandb):
    def test_a_start_that_logs_nothing_leaves_a_folder_that_can_be_read(self):
        self.log(-1, {"WANDB_MODE": "offline"})
        folder, = self.folders()
        self.assertEqual((folder.history, folder.exit_code), ([], 0))

    def test_a_folder_holds_every_point_picture_and_file(self):
        said = self.log(60, {"WANDB_MODE": "offline", "WANDB_NAME": "first", "WANDB_TAGS": "a,b"})
        run, = self.folders()
        self.assertIn(f"the run goes into ./wandb/{run.path.name}: WANDB_MODE is offline", said)
        self.assertEqual(rest_of(said), f"./wandb/{run.path.name}")
        self.assertRegex(run.path.name, r"^offline-run-\d{8}_\d{6}-[a-z0-9]{12}$")
        self.assertTrue(run.path.name.endswith(run.id))
        self.assertEqual((run.entity, run.project, run.name, run.tags), ("somebody", "pictures", "first", ["a", "b"]))
        self.assertEqual((run.config, run.resume), (CONFIG, False))
        self.check_rows(run.history, self.logged())
        self.assertEqual(run.history[-1]["error"], "the disk is slow")
        self.check_files(run.files, run.history)
        self.check_console("".join(line for line, _ in run.console).encode())
        self.assertEqual([line for line, is_error in run.console if is_error], ["[track] error: the disk is slow\n"])
        self.assertEqual(run.metrics[0], ("step", ""))
        self.assertEqual(sorted(run.metrics[1:]), [(name, "step") for name in ("Epoch", "Gradient Norm", "Train Samples",
                                                                                "Unet 0 Training Loss", "error")])
        self.assertEqual(run.summary["Unet 0 Training Loss"], 1 / 60)
        self.assertEqual(run.summary["_step"], run.history[-1]["_step"])
        self.assertGreater(run.stats[0]["proc.memory.rssMB"], 1)
        self.assertEqual((run.exit_code, run.preempting), (0, False))

    def test_the_console_stays_here_if_the_environment_says_so(self):
        self.log(2, {"WANDB_MODE": "offline", "WANDB_CONSOLE": "off"})
        run, = self.folders()
        self.assertEqual(run.console, [])

    def test_records_larger_than_a_block_and_a_killed_run_can_be_read(self):
        """And a start after that goes on with the same run: no point is dropped, whatever the order of the steps."""
        (self.dir / "wandb").mkdir()
        log = {**LOG, "auto_resume": True}
        for start in (1, 2):
            lines = lambda: (self.dir / "out/log.jsonl").exists() and len(self.logged()) > 500 * start
            process = self.log_until(lines, {"WANDB_MODE": "offline"}, log=log, pause=0.002)
            time.sleep(0.2)
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.log(5, {"WANDB_MODE": "offline"}, log=log)
        runs = self.folders()
        self.assertEqual(len({run.id for run in runs}), 1)
        self.assertEqual([run.resume for run in runs], [False, True, True])
        self.assertEqual([run.exit_code for run in runs], [None, None, 0])
        # What a kill left between a row and its cursor comes again under its old step, and the service drops it.
        rows = []
        for row in (row for run in runs for row in run.history):
            if not rows or row["_step"] > rows[-1]["_step"]:
                rows.append(row)
        self.assertGreater((runs[0].path / f"run-{runs[0].id}.wandb").stat().st_size, 2 * wandb_file.BLOCK)
        logged = self.logged()
        self.check_rows(rows, logged)  # one that was on its way to the logger's thread came with the next start
        self.assertLess(rows[-1]["step"], max(row["step"] for row in rows))  # ours began anew
        self.assertEqual(json.loads((self.dir / "out/auto_resume.json").read_text())["run_id"], runs[0].id)

    def test_a_run_that_goes_on_by_its_id_alone_rises_beyond_what_is_not_known_here(self):
        now = time.time()
        log = {**LOG, "resume": True, "wandb_run_id": "abcd1234", "auto_resume": True}
        self.log(3, {"WANDB_MODE": "offline"}, log=log)
        self.log(3, {"WANDB_MODE": "offline"}, log=log)
        first, second = self.folders()
        self.assertEqual((first.id, first.resume, second.id, second.resume), ("abcd1234", True, "abcd1234", True))
        self.assertGreaterEqual(first.history[0]["_step"], int(now))
        steps = [row["_step"] for row in first.history + second.history]
        self.assertEqual(steps, sorted(set(steps)))

    def test_modes_and_where_they_come_from(self):
        said = self.log(2, {"WANDB_MODE": "disabled", "WANDB_API_KEY": KEY})
        self.assertIn("Nothing is logged to Weights & Biases: WANDB_MODE is disabled", said)
        self.assertFalse((self.dir / "wandb").exists())
        self.assertIn("there is no API key for https://api.wandb.ai (WANDB_API_KEY, ~/.netrc)", self.log(2, {}))
        settings = self.dir / "home/.config/wandb/settings"
        settings.parent.mkdir(parents=True)
        settings.write_text("[default]\nmode = offline\nbase_url = https://wandb.example\n")
        self.assertIn("settings: mode is offline", self.log(2, {"WANDB_API_KEY": KEY}))
        (self.dir / "wandb/settings").write_text("[default]\nmode = disabled\n")
        self.assertIn("./wandb/settings: mode is disabled", self.log(2, {"WANDB_API_KEY": KEY}))
        said = self.log(2, {"WANDB_MODE": "offline", "WANDB_DIR": "elsewhere"})
        self.assertEqual(len(self.folders("elsewhere/wandb")), 1)

    def test_what_a_disabled_start_logs_is_sent_by_a_later_one(self):
        log = {**LOG, "auto_resume": True}
        for mode in ("offline", "disabled", "offline"):
            self.log(3, {"WANDB_MODE": mode}, log=log)
        first, second = self.folders()
        self.check_rows(first.history + second.history, self.logged())

    def test_a_start_without_cursors_asks_the_folders_of_the_run(self):
        log = {**LOG, "auto_resume": True}
        for _ in range(3):
            self.log(3, {"WANDB_MODE": "offline"}, log=log)
            (self.dir / "out/followers.json").unlink()  # a hint alone
        rows = [row for folder in self.folders() for row in folder.history]
        self.check_rows(rows, self.logged())
        # A run under the same id whose log is another one has nothing there.
        self.log(3, {"WANDB_MODE": "offline", "WANDB_RUN_ID": self.folders()[0].id}, out="other")
        self.assertEqual([row["step"] for row in self.folders()[-1].history], [row["step"] for row in self.logged("other")])

    def test_what_the_environment_says_wrong_ends_the_start(self):
        for env, text in (({"WANDB_MODE": "sometimes"}, 'WANDB_MODE is "sometimes": expected online, offline or disabled'),
                          ({"WANDB_MODE": "online"}, "WANDB_MODE is online, but there is no API key for https://api.wandb.ai"),
                          ({"WANDB_BASE_URL": "wandb.example"}, 'WANDB_BASE_URL is "wandb.example": expected an address such as https://'),
                          ({"WANDB_BASE_URL": "http://wandb.example"}, "plain http to another machine (http://wandb.example) is refused"),
                          ({"WANDB_BASE_URL": "https://u:canary@wandb.example"}, 'WANDB_BASE_URL is "https://wandb.example" with a login or a query'),
                          ({"WANDB_API_KEY": "with a canary"}, "WANDB_API_KEY: the API key of https://api.wandb.ai holds blanks"),
                          ({"WANDB_MODE": "offline", "WANDB_DIR": "/proc"}, "Set WANDB_DIR to another place")):
            with self.subTest(text):
                said = self.log(2, env, check=2)
                self.assertIn(text, said)
                self.assertNotIn("canary", said)


class Online(Wandb):
    def test_the_service_holds_what_a_folder_would(self):
        double = self.double()
        log = {**LOG, "wandb_project": "my pictures"}
        said = self.log(60, double.env(), log=log)
        self.log(60, {"WANDB_MODE": "offline"}, log=log, out="offline")
        run, (folder,) = double.only_run(), self.folders()
        self.assertIn(f"Logging to Weights & Biases: {double.url}/somebody/my%20pictures/runs/{run.name}", said)
        self.check_rows(run.history, self.logged())
        self.check_files(run.files, run.history)
        self.assertEqual(without_times(run.history), without_times(folder.history))
        self.assertEqual(set(run.files) - set(folder.files), {"config.yaml", "wandb-summary.json"})
        lines = run.lines["output.log"]
        for line in lines:
            self.assertRegex(line, r"^(ERROR )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6} ")
        bare = [line.removeprefix("ERROR ").split(" ", 1)[1] for line in lines]
        self.check_console(("\n".join(bare) + "\n").encode())
        self.assertEqual([line for line in lines if line.startswith("ERROR ")], [line for line in lines if "the disk is slow" in line])
        self.assertEqual({key: value["value"] for key, value in run.config.items() if key != "_wandb"}, folder.config)
        self.assertEqual(run.axes, {name: axis or None for name, axis in folder.metrics})
        times = (*TIMES, "_wandb")
        self.assertEqual(*({k: v for k, v in summary.items() if k not in times} for summary in (run.summary, folder.summary)))
        self.assertIn("system.proc.memory.rssMB", run.events[0])
        self.assertEqual((run.complete, run.exit_code, run.preempting), (True, 0, False))
        self.assertLessEqual(set(folder.files), set(run.uploaded))

    def test_a_stopped_run_and_a_killed_one_go_on_as_the_same_run(self):
        double = self.double()
        log = {**LOG, "auto_resume": True, "wandb_run_name": "mine"}
        rows = lambda: len(double.only_run().history) if double.runs else 0
        process = self.log_until(lambda: rows() > 0, double.env(), log=log)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 75, process.stdout.read())
        run = double.only_run()
        self.assertEqual((run.exit_code, run.preempting, run.display_name), (75, True, "mine"))
        self.check_rows(run.history, self.logged())
        before = rows()
        process = self.log_until(lambda: rows() > before, double.env(), log=log)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.log(5, double.env(), log=log)
        self.assertEqual(len(double.runs), 1)
        self.assertEqual(len(run.history), len(run.lines["wandb-history.jsonl"]))  # the service drops no row
        self.check_rows(run.history[:before], self.logged()[:before])
        self.assertEqual(run.history[-1]["error"], "the disk is slow")
        self.assertEqual(run.exit_code, 0)

    def test_a_run_is_gone_on_with_by_its_id_from_another_machine(self):
        double = self.double()
        log = {**LOG, "wandb_run_id": "abcd1234"}
        self.log(30, double.env(), log=log)
        log = {**log, "resume": True, "auto_resume": True}
        self.log(5, double.env(), log=log, out="another")
        double.mistreat = lambda handler, kind, number: kind == "file_stream" and handler.json(503, {})
        self.log(5, double.env(), log=log, out="another")
        double.mistreat = lambda handler, kind, number: False
        (self.dir / "another/followers.json").unlink()  # a hint alone
        self.log(5, double.env(), log=log, out="another")
        run = double.only_run()
        self.check_rows(run.history, self.logged() + self.logged("another"))

    def test_a_kill_amid_the_first_rows_of_a_run_gone_on_with_loses_none(self):
        """Only the cursor knows which of the service's steps are of this log."""
        double = self.double()
        log = {**LOG, "wandb_run_id": "abcd1234", "auto_resume": True}
        self.log(30, double.env(), log=log)
        lines = lambda: len(self.logged("another")) if (self.dir / "another/log.jsonl").exists() else 0
        double.mistreat = lambda handler, kind, number: lines() < 20 and handler.hang_up()
        process = subprocess.Popen(self.command(10**6, {**log, "resume": True}, "another", 0.01), cwd=self.dir, env=self.env(double.env()),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def lose(kind, number):
            if b"wandb-history.jsonl" in double.requests[-1][3]:
                time.sleep(0.5)  # more lines come
                process.kill()
            return False

        double.lose = lose
        process.wait(timeout=60)
        double.lose = lambda kind, number: False
        self.log(5, double.env(), log={**log, "resume": True}, out="another")
        self.check_rows(double.only_run().history, self.logged() + self.logged("another"))

    def test_keys_of_netrc_belong_to_their_host_and_port(self):
        double = self.double()
        host = double.url.removeprefix("http://")
        netrc = self.dir / "home/.netrc"
        netrc.write_text(f"machine other login user password wrong\nmachine {host}\n  login user\n  password '{KEY}'\n")
        self.log(2, {"WANDB_BASE_URL": double.url})
        self.assertTrue(double.only_run().complete)
        netrc.write_text(f"machine 127.0.0.1 login user password {KEY}\n")
        self.assertIn("there is no API key", self.log(2, {"WANDB_BASE_URL": double.url}))
        netrc.rename(self.dir / "keys")
        (self.dir / "keys").write_text(f"default login user password {KEY}\n")
        self.log(2, {"WANDB_BASE_URL": double.url, "NETRC": str(self.dir / "keys")})
        self.assertEqual(len(double.runs), 2)


class Faults(Wandb):
    def check_all_arrived(self, double, exit_code=0):
        """Each row once, in order, with its pictures, and no folder."""
        run = double.only_run()
        self.assertEqual(len(run.history), len(run.lines["wandb-history.jsonl"]), "the service dropped rows")
        self.check_rows(run.history, self.logged())
        names = [name for row in run.history for name in row.get("Train Samples", {}).get("filenames", [])]
        self.assertEqual(len(set(names)), len(names))
        picture = next((self.dir / "out/images").iterdir()).read_bytes()  # they are all the same
        self.assertEqual({run.files[name] for name in names}, {picture})
        self.assertEqual((run.complete, run.exit_code), (True, exit_code))
        self.assertFalse((self.dir / "wandb").exists())

    def test_a_refused_key_or_project_ends_the_start(self):
        double = self.double()
        said = self.log(2, {**double.env(), "WANDB_API_KEY": "canary"}, check=6)
        self.assertIn("The API key is refused: copy it from the service's page /authorize into WANDB_API_KEY", said)
        self.assertIn("/tracker/log: ", said)
        self.assertNotIn("canary", said)
        double.mistreat = lambda handler, kind, number: handler.json(403, {})
        said = self.log(2, double.env(), check=6)
        self.assertIn("The login may not write there: check the entity and the project", said)
        self.assertEqual(harness.left_by_refused_start(self.dir / "out"), [], "the start left its folder")
        self.assertFalse(double.runs)
        self.assertFalse((self.dir / "wandb").exists(), "the start left its folder")

    def test_a_service_that_is_away_at_the_start_gets_all_rows_later(self):
        log, double = {**LOG, "auto_resume": True}, self.double()
        for url in (f"http://127.0.0.1:{harness.free_port()}", "https://nowhere.invalid"):
            began = time.monotonic()
            said = self.log(5, {"WANDB_BASE_URL": url, "WANDB_API_KEY": KEY}, log=log)
            self.assertLess(time.monotonic() - began, 30)
            self.assertIn("Its rows wait in log.jsonl until the service answers", said)
            self.assertRegex(said, r"Weights & Biases \(\d+ rows\) could not be sent: the next start sends what is left")
        self.log(5, double.env(), log=log)
        self.check_all_arrived(double)

    def test_a_start_from_another_working_directory_sends_all_rows(self):
        """Where the folders of earlier starts are, is not known there."""
        log, double = {**LOG, "auto_resume": True}, self.double()
        self.log(5, {"WANDB_MODE": "offline"}, log=log)
        (self.dir / "other").mkdir()
        command = [str(LOG_LIKE_A_RUN), str(self.dir / "log.json"), str(self.dir / "out"), "5"]
        done = subprocess.run(command, cwd=self.dir / "other", env=self.env(double.env()), timeout=100, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        run = double.only_run()
        self.check_rows(run.history, self.logged())
        self.assertEqual(len(run.history), len(run.lines["wandb-history.jsonl"]), "the service dropped rows")

    def test_a_signal_at_any_request_loses_no_row(self):
        log = {**LOG, "auto_resume": True}
        for sent in (signal.SIGKILL, signal.SIGTERM):
            number, ended = 0, True
            while ended:
                number += 1
                with self.subTest(sent, number=number):
                    shutil.rmtree(self.dir / "out", ignore_errors=True)
                    double = self.double()
                    process = subprocess.Popen(self.command(15, log, pause=0.02), cwd=self.dir, env=self.env(double.env()),
                                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    double.mistreat = lambda handler, kind, _: len(double.requests) == number and process.send_signal(sent)
                    process.wait(timeout=60)
                    double.mistreat = lambda handler, kind, _: False
                    ended = len(double.requests) >= number
                    self.log(5, double.env(), log=log)
                    names = {run.name for run in double.runs.values()}
                    self.assertLessEqual(len(names), 1)
                    run = max(double.runs.values(), key=lambda run: len(run.history))
                    self.check_rows(run.history, self.logged())
                    self.assertEqual(len(run.history), len(run.lines["wandb-history.jsonl"]), "the service dropped rows")
            self.assertGreater(number, 6)

    def test_three_429_at_the_start_delay_the_rows_alone(self):
        double = self.double()
        double.mistreat = lambda handler, kind, number: len(double.requests) <= 3 and handler.json(429, {}, Retry_After="1")
        self.log(30, double.env())
        self.check_all_arrived(double)

    def test_a_row_of_another_program_costs_no_row_that_waits(self):
        log, double = {**LOG, "auto_resume": True}, self.double()
        self.log(5, double.env(), log=log)
        self.log(6, double.env(WANDB_BASE_URL=f"http://127.0.0.1:{harness.free_port()}"), log=log)
        lines = double.only_run().lines["wandb-history.jsonl"]
        lines.append(json.dumps({"FID": 1.5, "_step": json.loads(lines[-1])["_step"] + 1}))
        self.log(4, double.env(), log=log)
        self.check_rows([row for row in double.only_run().history if "FID" not in row], self.logged())

    def test_a_picture_that_is_refused_holds_up_no_row(self):
        double = self.double()
        double.mistreat = lambda handler, kind, number: kind == "storage" and "Samples_0_" in handler.path and handler.json(413, {})
        self.assertRegex(self.log(5, double.env()), r"error: Weights & Biases: not sent: media/images/0_Train Samples_0_\d+\.png")
        rows = double.only_run().history
        self.assertEqual([row["step"] for row in rows], [record["step"] for record in self.logged()])
        self.assertEqual([row["Train Samples"]["count"] for row in rows if "Train Samples" in row], [1])

    def test_a_service_that_falls_silent_holds_the_end_for_half_a_minute(self):
        double = self.double()
        double.mistreat = lambda handler, kind, number: kind == "graphql" and number > 4 and handler.stall()
        began = time.monotonic()
        said = self.log(5, double.env(DALLE2_NET_TIMEOUT="60"))
        self.assertTrue(29 < time.monotonic() - began < 45)
        self.assertIn("Weights & Biases (7 rows) could not be sent", said)

    def test_lost_answers_cost_nothing_and_send_nothing_twice(self):
        for kind in ("graphql", "file_stream", "storage"):
            with self.subTest(kind):
                shutil.rmtree(self.dir / "out", ignore_errors=True)
                double = self.double()
                double.lose = lambda of, number: of == kind and number % 2 == 0
                self.log(30, double.env())
                self.check_all_arrived(double)

    def test_storage_of_plain_http_elsewhere_is_never_used(self):
        log, double = {**LOG, "auto_resume": True}, self.double()
        double.storage_url = "http://storage.invalid"
        said = self.log(30, double.env(), log=log)
        self.assertIn("the service names a plain http address of another machine, http://storage.invalid/", said)
        double.storage_url = double.url
        self.log(5, double.env(), log=log)
        self.check_all_arrived(double)


class Training(harness.EndToEnd):
    def test_a_training_run_as_a_folder(self):
        config = self.config()
        content = json.loads(pathlib.Path(config).read_text())
        content["tracker"]["log"] = [{"log_type": "console"}, LOG]
        harness.write_config(config, content)
        self.train(config, env={"WANDB_MODE": "offline", "HOME": str(self.dir)})
        path, = (self.dir / "wandb").glob("offline-run-*")
        run = wandb_file.Folder(path)
        self.assertEqual(run.config["decoder"]["unets"][0]["dim"], 8)
        self.assertEqual(run.config["decoder"]["timesteps"], 50)
        self.assertEqual(run.config["train"]["max_grad_norm"], 0.5)  # a default
        self.assertEqual((run.config["NumProcesses"], run.config["DistributedType"]), (1, "NO"))
        records = [record for record in harness.records(self.dir / "out") if "run_id" not in record]
        self.assertEqual([row["step"] for row in run.history], [record["step"] for record in records])
        pictures = [row["Train Samples"] for row in run.history if "Train Samples" in row]
        self.assertTrue(pictures and pictures[0]["captions"][0].startswith("Train: "))
        self.assertIn("decoder_config.json", run.files)
        self.assertEqual(run.exit_code, 0)


@needs_reference
class RealClient(Wandb):
    def sync(self, double, *folders):
        client = [REFERENCE_PYTHON, "-m", "wandb", "sync", *map(str, folders)]
        done = subprocess.run(client, cwd=self.dir, env=self.env(double.env()), timeout=120, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotRegex(done.stdout + done.stderr, "(?i)error|fail|corrupt")

    def test_what_was_sent_online_equals_what_is_synced_by_the_reference(self):
        online, offline = self.double(), self.double()
        self.log(60, online.env())
        self.log(60, {"WANDB_MODE": "offline"}, out="offline")
        self.sync(offline, self.folders()[0].path)
        sent, synced = online.only_run(), offline.only_run()
        self.check_rows(synced.history, self.logged("offline"))
        self.check_files(synced.files, synced.history, "offline")
        self.assertEqual(without_times(synced.history), without_times(sent.history))
        config = [{key: value for key, value in run.config.items() if key != "_wandb"} for run in (sent, synced)]
        self.assertEqual(*config)
        self.assertEqual(sent.axes, synced.axes)
        self.assertEqual(*({k: v for k, v in run.summary.items() if k not in (*TIMES, "_wandb")} for run in (sent, synced)))
        self.assertEqual(set(sent.files), set(synced.files) - {"output.log"})  # which ours sends as lines alone
        self.check_console(synced.files["output.log"].replace(b"offline", b"out"))
        # Both print some lines of their own, such as where the run is; what both print has the same mark and text.
        marks = [{line.removeprefix("ERROR ").split(" ", 1)[-1]: line.startswith("ERROR ") for line in run.lines["output.log"]}
                 for run in (sent, synced)]
        common = marks[0].keys() & marks[1].keys()
        self.assertGreater(len(common), 1, marks)
        self.assertIn(True, [marks[0][text] for text in common], marks)
        self.assertEqual(*({text: mark[text] for text in common} for mark in marks))
        self.assertEqual(set(sent.events[0]), set(synced.events[0]))
        self.assertEqual((sent.complete, sent.exit_code), (synced.complete, synced.exit_code))

    def test_folders_of_one_run_are_joined_by_the_reference(self):
        """Three starts of a run, the second killed."""
        log = {**LOG, "auto_resume": True}
        self.log(20, {"WANDB_MODE": "offline"}, log=log)
        process = self.log_until(lambda: len(self.logged()) > 60, {"WANDB_MODE": "offline"}, log=log)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.log(20, {"WANDB_MODE": "offline"}, log=log)
        double = self.double()
        self.sync(double, *(folder.path for folder in self.folders()))
        run = double.only_run()
        self.check_rows(run.history, self.logged())
        self.assertEqual(run.exit_code, 0)
        # What is in folders can be sent from the log too.
        direct = self.double()
        self.log(5, direct.env(), log=log)
        self.check_rows(direct.only_run().history, self.logged())


if __name__ == "__main__":
    harness.main()
