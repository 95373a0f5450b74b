# SPDX-License-Identifier: MIT
"""What a person sees of a run: on a terminal of 80 columns no line wraps, in a file there are whole lines without control
characters, and nowhere is there JSON or a line twice."""
import fcntl
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios

import harness
from harness import BINARY, EndToEnd, records, write_config
from prior_data import make_embeddings, prior_config

COLUMNS = 80
CLEAR = "\r\x1b[K"
STEP = r"step \d+  loss [\d.,e-]+( [\d.,e-]+)*  lr [\d.e-]+  grad [\d.,e-]+( [\d.,e-]+)*  [\d.,]+ samples/s"


def on_terminal(*arguments, cwd, stop_at=None, **env):
    """Runs the binary on a terminal; Ctrl-C as soon as `stop_at` was shown. @return (exit code, what it wrote)"""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen([BINARY, *map(str, arguments)], cwd=cwd, stdin=terminal, stdout=terminal, stderr=terminal,
                               env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", **env})
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
        if stop_at and stop_at in shown.decode(errors="replace"):
            process.send_signal(signal.SIGINT)
            stop_at = None
    os.close(master)
    return process.wait(timeout=60), shown.decode()


def shown_lines(shown):
    """All that ever stood in a line of the terminal, the live ones too."""
    return [text for line in shown.split("\r\n") for text in line.split(CLEAR)]


class Console(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_embeddings(cls.base)

    def decoder(self, **train):
        unet = {**harness.UNET, "memory_efficient": True}
        return self.config("decoder.json", decoder={**harness.CASCADE, "unets": [harness.CASCADE["unets"][0], unet]},
                           train={"epochs": 2, "save_every_n_samples": 40, **train})

    def prior(self, **train):
        return write_config(self.dir / "prior.json", prior_config(self.base, "out", train={"epochs": 2, **train}))

    def check_lines(self, lines):
        for line in lines:
            self.assertLess(len(line), COLUMNS, line)
        self.check_for_people(lines)

    def check_for_people(self, lines):
        """No JSON, no number with more digits than somebody reads, and no line of a step twice."""
        for line in lines:
            self.assertNotRegex(line, r'[{}]|": ', line)
            for number in re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", line):
                self.assertLessEqual(len(number.replace(".", "").lstrip("0")), 4, line)
        steps = [line for line in lines if line.startswith("step ")]
        self.assertTrue(steps)
        self.assertEqual(len(steps), len(set(steps)), steps)

    def check_terminal(self, shown):
        lines = shown_lines(shown)
        self.check_lines(lines)
        for line in lines:
            self.assertNotRegex(line, r"[\x00-\x1f]", line)

    def check_steps(self, lines, key):
        """Each record of a step is one line, and no other line has its values."""
        steps = [line for line in lines if re.fullmatch(STEP, line)]
        self.assertEqual([int(line.split()[1]) for line in steps],
                         [record["step"] for record in records(self.dir / "out") if key in record])
        self.assertEqual([line for line in lines if "samples/s" in line and line not in steps and "Val Step" not in line], [])

    def test_a_decoder_on_a_terminal_of_80_columns(self):
        config = self.decoder()
        code, shown = on_terminal("--config", config, cwd=self.dir)
        self.assertEqual(code, 0, shown)
        self.check_terminal(shown)
        lines = shown_lines(shown)
        self.check_steps(lines, "Unet 0 Training Loss")
        for text in (r"Number of parameters: \d+ total", r"Unet 1 has \d+ total", r"Unet 2 has \d+ total"):
            self.assertEqual(len(re.findall(text, shown)), 1, shown)
        self.assertRegex(shown, r"epoch 1/2 \[=*>? *\] [\d,]+/[\d,]+")
        for number in (0, 1):
            for line in (f"[train] Starting epoch {number}",
                         f"[sample] Sampling and saving after epoch {number}"):
                self.assertEqual(lines.count(line), 1, shown)
        self.assertTrue(any(re.fullmatch(r"step \d+  validation loss [\d.]+ [\d.]+  of \d+ samples", line)
                            for line in lines), shown)
        self.assertIn("[train] done: 2 epochs, ", shown)

    def test_a_stop_and_what_follows_on_a_terminal(self):
        for kind in ("decoder", "prior"):
            with self.subTest(kind):
                config = getattr(self, kind)(epochs=50)
                code, shown = on_terminal("--config", config, cwd=self.dir, stop_at="Starting epoch 2")
                self.assertEqual(code, 75, shown)
                self.check_terminal(shown)
                self.assertIn("[train] SIGINT: saving and stopping; run the same command again to resume\r\n", shown)
                epoch = int(re.findall(r"Starting epoch (\d+)", shown)[-1])  # a fast run is beyond epoch 2 when it hears the stop
                again = ("--config", config, "--set", f"/train/epochs={epoch + 1}")
                code, shown = on_terminal(*again, "--dry-run", cwd=self.dir)
                self.assertEqual(code, 0, shown)
                for line in shown_lines(shown):
                    self.assertLess(len(line), COLUMNS, line)
                self.assertNotIn("AUTO-RESUMED", shown)  # nothing is resumed
                code, shown = on_terminal(*again, cwd=self.dir)
                self.assertEqual(code, 0, shown)
                self.check_terminal(shown)
                self.assertIn("RUN HAS BEEN AUTO-RESUMED WITH THE LOGGER TYPE ConsoleLogger.", shown)
                self.assertRegex(shown, rf"\[ckpt\] Resuming with epoch {epoch} at sample \d+\r\n")
                harness.shutil.rmtree(self.dir / "out")

    def test_errors_on_a_terminal(self):
        config = self.decoder()
        for override, text in (("/train/lr=-1", "error: decoder.json: "), ("/data/webdataset_base_url=nowhere/{}.tar", "error: "),
                               ("/tracker/load={\"load_from\": \"local\", \"file_path\": \"absent.pth\"}", "absent.pth")):
            code, shown = on_terminal("--config", pathlib.Path(config).name, "--set", override, cwd=self.dir)
            self.assertIn(code, (2, 3), shown)
            self.assertIn(text, shown)
            for line in shown_lines(shown):
                if str(self.dir) not in line:  # a path stays whole, so that it can be copied
                    self.assertLess(len(line), COLUMNS, line)

    def test_a_file_has_whole_lines(self):
        for kind, key in (("decoder", "Unet 0 Training Loss"), ("prior", "tracking/training-l2")):
            with self.subTest(kind):
                config = getattr(self, kind)()
                with open(self.dir / "console.txt", "w") as out:
                    subprocess.run([BINARY, "--config", config], cwd=self.dir, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=subprocess.STDOUT, check=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
                text = (self.dir / "console.txt").read_bytes().decode()
                self.assertNotRegex(text, r"[\x00-\x09\x0b-\x1f]")
                lines = text.splitlines()
                self.check_for_people(lines)
                self.check_steps(lines, key)
                for number in (0, 1):
                    self.assertTrue(any(f"[train] epoch {number}/2, " in line for line in lines), text)
                loaded = r"having seen [\d,]+ samples with .*validation loss [\d.e-]+\n\[(.*\n)+"
                again = self.train(config).stdout
                self.assertRegex(again, loaded + r"\[train\] nothing left to do: the run has finished")
                self.assertNotIn("Resuming", again)
                self.assertRegex(self.train(config, "--set=/train/epochs=3").stdout, loaded + r"\[ckpt\] Resuming with ")
                harness.shutil.rmtree(self.dir / "out")

    def test_quiet_shows_warnings_errors_and_how_the_run_ended(self):
        done = self.train(self.decoder(), "--quiet")
        self.assertRegex(done.stdout, r"\A\[train\] done: 2 epochs, \d+ samples\n\Z")
        self.assertEqual(done.stderr, "")
        self.assertTrue([record for record in records(self.dir / "out") if "Unet 0 Training Loss" in record])
        self.assertRegex(self.train(self.decoder(), "--quiet").stdout, r"\A\[train\] nothing left to do: [^\n]*\n\[train\] done: 2 epochs, \d+ samples\n\Z")
        (self.dir / "out/checkpoint.pth").unlink()  # latest.pth may be the same file
        (self.dir / "out/checkpoint.pth").write_bytes(b"damaged")
        self.assertRegex(self.train(self.decoder(), "--quiet").stderr, r"\A\[ckpt\] warning: out/checkpoint.pth: ")
        process = self.start("--config", self.decoder(epochs=1000), "--quiet", stderr=subprocess.DEVNULL)
        before = len(records(self.dir / "out"))
        harness.wait_for(process, lambda: len(records(self.dir / "out")) > before)
        process.send_signal(signal.SIGTERM)
        shown = process.communicate(timeout=60)[0]
        self.assertTrue(shown.startswith("[train] SIGTERM: saving and stopping; run the same command again to resume\n"), shown)

    def test_a_line_of_another_rank_has_a_line_of_the_terminal_to_itself(self):
        shards = self.dir / "damaged"
        harness.shutil.copytree(self.shards, shards)
        for embeddings in sorted((shards / "img_emb").glob("*.npy"))[3::4]:
            embeddings.unlink()
        config = self.config(shards=shards, train={"epochs": 1, "n_sample_images": 0}, data={"max_bad_fraction": 1.0})
        code, shown = on_terminal("--config", config, "--nproc-per-node", 2, cwd=self.dir)
        self.assertEqual(code, 0, shown)
        before = [shown[max(0, found.start() - len(CLEAR)):found.start()] for found in re.finditer(r"\[rank 1\]", shown)]
        self.assertGreater(len(before), 1, shown)
        self.assertEqual(set(before), {CLEAR}, shown)


if __name__ == "__main__":
    harness.main()
