# SPDX-License-Identifier: MIT
"""Several ranks as one process of the tests, which waits for what they say, disturbs them, and leaves none behind."""
import json
import os
import pathlib
import random
import signal
import subprocess
import threading
import time

from harness import BINARY, OWN_NETWORK, ranks_of


def processes_of(mark):
    """Numbers of the processes that carry a variable in their environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and "Z" != (folder / "stat").read_text().rpartition(")")[2].split()[0]:
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile, or is another's
            pass
    return found


class Start:
    """A start of a run with several ranks, by the launcher; `inside` is what comes before that in the command. With `on_machines` there
    is no launcher, and each rank is on a machine of its own."""
    def __init__(self, config, folder, ranks, on_machines=False, inside=(), env=None):
        self.mark = f"DALLE2_FAULT_MARK={random.getrandbits(64):x}"
        name, value = self.mark.split("=")
        command = [BINARY, "--config", config]
        command = [*OWN_NETWORK, "--machines", str(ranks), *command] if on_machines else [*inside, *command, "--nproc-per-node", str(ranks)]
        self.ranks, self.on_machines = ranks, on_machines
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, env={**os.environ, "OMP_NUM_THREADS": "1", name: value, **(env or {})})
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")))
        self.reader.start()

    def output(self):
        return "".join(self.lines)

    def said(self):
        return " ".join(self.output().split())

    def wait_for(self, text, limit=240):
        """Until it has said that; None: until all processes are there. @return false if the run ended before"""
        deadline = time.monotonic() + limit
        while self.process.poll() is None and time.monotonic() < deadline:
            if len(ranks_of(self.process)) == self.ranks if text is None else text in self.output():
                return True
            time.sleep(0.01)
        assert self.process.poll() is not None, f"not reached: {text}\n{self.output()}"
        return False

    def wait(self, limit):
        """@return seconds until the last process had closed its output, None if that is beyond the limit"""
        begin = time.monotonic()
        self.reader.join(limit)
        if self.reader.is_alive():
            return None
        self.process.wait()
        return time.monotonic() - begin

    def clean_up(self):
        for process in processes_of(self.mark):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.reader.join()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def codes(self):
        """Of the run; of each rank where nobody stands over them."""
        if not self.on_machines:
            return [self.process.returncode]
        lines = [line for line in self.lines if line.startswith("exit codes ")]
        return json.loads(lines[-1][len("exit codes "):])
