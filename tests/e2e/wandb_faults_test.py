#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs that log to Weights & Biases and are refused at their start, or whose folder or log changes between two
starts: a start has what the service has not, in order, and nothing of elsewhere."""
import json
import shutil

import harness
from harness import ROOT
from wandb_double import KEY
from wandb_test import LOG, Wandb


class Start(Wandb):
    def test_a_refused_start_changes_nothing_of_an_earlier_run(self):
        double = self.double()
        self.log(5, {"WANDB_MODE": "offline"})
        files = lambda: {path: path.read_bytes() for path in (self.dir / "out").rglob("*") if path.is_file() and path.name != "run.lock"}
        before = files()
        double.mistreat = lambda handler, kind, number: b"missingOk" in double.requests[-1][3] and handler.json(
            200, {"errors": [{"message": "permission denied"}], "data": None})
        self.assertIn("permission denied", self.log(5, double.env(), check=6))
        self.assertEqual(files(), before)
        double.mistreat = lambda handler, kind, number: False
        log = {**LOG, "resume": True, "wandb_run_id": "absent"}
        self.assertIn("there is no run somebody/pictures/absent to continue", self.log(5, double.env(), log=log, check=2))
        self.assertEqual(files(), before)
        self.log(5, double.env())
        self.assertTrue((self.dir / "out.1/checkpoint.pth").exists())


class Replay(Wandb):
    def test_sync_sends_the_rows_of_each_logger(self):
        double = self.double()
        double.mistreat = lambda handler, kind, number: kind == "file_stream" and handler.json(500, {})
        self.log(5, double.env(), log=[LOG, {**LOG, "wandb_project": "others"}])
        double.mistreat = lambda handler, kind, number: False
        for run in double.runs.values():
            run.files.clear()
            run.config.clear()
        done = harness.run("sync", "out", cwd=self.dir, env=self.env(), check=6)
        self.assertRegex(done.stdout, r"(?m)^0 files sent, \d+ rows left")
        self.assertIn("no API key was found", done.stderr)
        done = harness.run("sync", "out", cwd=self.dir, env=self.env({**double.env(), "WANDB_API_KEY": "f" * 40}), check=6)
        self.assertRegex(done.stdout, r"(?m)^0 files sent, \d+ rows left")
        done = harness.run("sync", "out", cwd=self.dir, env=self.env(double.env()), check=0)
        self.assertRegex(done.stdout, r"(?m)^0 files and \d+ rows sent, nothing is left")
        self.assertEqual(sorted(run.project for run in double.runs.values()), ["others", "pictures"])
        for run in double.runs.values():
            self.check_rows(run.history, self.logged())
            self.assertNotIn("wandb-metadata.json", run.files)  # of the machine that syncs
            self.assertEqual(run.config["NumProcesses"], {"value": 1})

    def test_rows_of_an_offline_folder_do_not_wait_and_sync_says_what_holds_there(self):
        log = {**LOG, "auto_resume": True}
        away = {"WANDB_BASE_URL": f"http://127.0.0.1:{harness.free_port()}", "WANDB_API_KEY": KEY}
        self.log(5, {"WANDB_MODE": "offline"}, log=log)
        self.assertIn("Weights & Biases (7 rows) could not be sent", self.log(5, away, log=log))
        done = harness.run("sync", "out", cwd=self.dir, env=self.env(away), check=6)
        self.assertIn("0 files sent, 7 rows left", done.stdout)
        self.assertIn("What waits stays: run `dalle2-train sync` again.", done.stderr)
        self.assertNotIn("The run continues", done.stderr)
        self.assertIn("0 files sent, 7 rows left", harness.run("sync", "out", cwd=self.dir, env=self.env(), check=6).stdout)

    def test_sync_sends_the_rows_with_every_default_of_the_config(self):
        """If a saver cannot be read, the config goes without its defaults; the error comes after the rows are sent."""
        whole = json.loads((ROOT / "configs/smoke/unconditional.json").read_text())
        whole["data"]["allow_pipe"] = True
        broken = {**whole, "tracker": {"save": {"save_to": "url", "url": "ftp://h/x", "save_latest_to": "latest.pth"}}}
        for config, code, default in ((whole, 0, 0.5), (broken, 6, None)):
            with self.subTest(code):
                shutil.rmtree(self.dir / "out", ignore_errors=True)
                double = self.double()
                double.mistreat = lambda handler, kind, number: kind == "file_stream" and handler.json(500, {})
                self.log(5, double.env())
                double.mistreat = lambda handler, kind, number: False
                (self.dir / "out/decoder_config.json").write_text(json.dumps(config))
                if code:
                    (self.dir / "out/outbox").mkdir(exist_ok=True)
                    (self.dir / "out/outbox/00000001_f").write_text("bytes")
                    note = {"to": "https://h/x", "target": "latest.pth", "kind": "checkpoint", "file": "00000001_f"}
                    (self.dir / "out/outbox/00000001.json").write_text(json.dumps(note))
                done = harness.run("sync", "out", cwd=self.dir, env=self.env(double.env()), check=code)
                run = double.only_run()
                self.check_rows(run.history, self.logged())
                self.assertEqual(run.config["train"]["value"].get("max_grad_norm"), default)
                self.assertTrue(run.config["data"]["value"]["allow_pipe"])
                self.assertEqual("out/decoder_config.json" in done.stderr and "/tracker/save" in done.stderr, code != 0)

    def test_sync_counts_the_rows_of_a_folder_that_another_start_sets_aside_as_left(self):
        double = self.double()
        double.mistreat = lambda handler, kind, number: kind == "file_stream" and handler.json(500, {})
        self.log(5, double.env())

        def set_aside(handler, kind, number):
            if (self.dir / "out").exists():
                (self.dir / "out").rename(self.dir / "out.1")
            return False
        double.mistreat = set_aside
        done = harness.run("sync", "out", cwd=self.dir, env=self.env(double.env()), check=6)
        self.assertRegex(done.stdout, r"(?m)^0 files sent, \d+ rows left")

    def test_a_long_replay_is_sent_in_pieces(self):
        log, double = {**LOG, "auto_resume": True}, self.double()
        self.log(2500, {"WANDB_MODE": "offline"}, log=log)
        self.log(3, double.env(), log=log)
        self.check_rows(double.only_run().history, self.logged())
        kinds = []
        for _, path, _, body in double.requests:
            if path.endswith("file_stream"):
                rows = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"content": []})["content"]
                self.assertLessEqual(len(rows), 1000)
                kinds.append("rows")
            elif b"createRunFiles" in body:
                self.assertLessEqual(len(json.loads(body)["variables"]["files"]), 100)
                kinds.append("files")
        self.assertGreater(kinds.index("rows"), 0)
        self.assertGreater(kinds.count("files"), 5)
        self.assertLess(kinds.index("rows"), kinds.count("files") - 1, "all pictures came before the first row")

    def test_a_log_that_has_lost_records_costs_no_later_row(self):
        """An editor, a log rotation or a full disk took them."""
        log = {**LOG, "auto_resume": True}
        self.log(30, {"WANDB_MODE": "offline"}, log=log)
        path = self.dir / "out/log.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:10]))
        self.log(3, {"WANDB_MODE": "offline"}, log=log)
        self.log(3, {"WANDB_MODE": "offline"}, log=log)
        rows = [row for folder in self.folders() for row in folder.history]
        steps = [row["_step"] for row in rows]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(len(rows), len(lines) - 1 + 5 + 5)

    def test_a_copied_folder_logs_into_a_run_of_its_own(self):
        for out, named in (("out", {}), ("named", {"wandb_run_id": "abcd1234"})):
            with self.subTest(out):
                log, double, copied = {**LOG, "auto_resume": True, **named}, self.double(), f"{out}_copy"
                self.log(5, double.env(), log=log, out=out)
                original = double.only_run()
                before = list(original.lines["wandb-history.jsonl"])
                shutil.copytree(self.dir / out, self.dir / copied)
                # The copy of the first is away from the service when it begins.
                away = {"WANDB_BASE_URL": f"http://127.0.0.1:{harness.free_port()}", "WANDB_API_KEY": KEY}
                said = self.log(4, double.env() if named else away, log=log, out=copied)
                self.log(4, double.env(), log=log, out=copied)
                self.assertRegex(said, rf"{copied} is a copy of \S+/{out}: it logs and saves as a run of its own")
                told = "The Weights & Biases run abcd1234 is that of the folder this one is a copy of: a new run begins"
                self.assertEqual(told in said, bool(named))
                self.assertTrue((self.dir / copied / "abandoned/followers.json").exists())
                self.assertEqual(original.lines["wandb-history.jsonl"], before)
                copy, = (run for run in double.runs.values() if run is not original)
                self.check_rows(copy.history, self.logged(copied)[len(before):])
                self.log(4, double.env(), log=log, out=copied)  # goes on with its own
                self.log(4, double.env(), log=log, out=out)
                self.assertEqual(len(double.runs), 2)
                self.check_rows(copy.history, self.logged(copied)[len(before):])
                self.check_rows(original.history, self.logged(out))


if __name__ == "__main__":
    harness.main()
