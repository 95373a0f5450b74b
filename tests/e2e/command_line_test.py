# SPDX-License-Identifier: MIT
"""The command line: help, exit codes, and what a user reads after a mistake."""
import json
import os
import re
import resource
import shutil
import subprocess

import harness
from harness import BINARY, EndToEnd, run, tiny_config, write_config, write_npy

SUBCOMMANDS = [[], ["sample"], ["evaluate"], ["inspect"], ["fsck"], ["convert"], ["ema"], ["schema"], ["report"], ["shards"], ["shards", "demo"],
               ["shards", "make"], ["shards", "check"], ["shards", "order"],
               ["shards", "embed"], ["shards", "score"]]

COMMANDS_WITH_OPTIONS = [command for command in SUBCOMMANDS if command not in (["schema"], ["shards"])]


class CommandLine(EndToEnd):
    def refuse(self, code, *arguments, expect):
        """The command ends with `code`, and its message holds every text of `expect`."""
        done = run(*arguments, cwd=self.dir)
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, text)
        for part in expect:
            self.assertIn(part, text)
        self.assertLessEqual(len(done.stderr.splitlines()), 60)
        return text

    def test_every_command_has_a_help_text(self):
        for command in SUBCOMMANDS:
            done = run(*command, "--help", cwd=self.dir, check=0, env={"COLUMNS": "80"})
            self.assertEqual([line for line in done.stdout.splitlines() if len(line) > 80], [], command)
            self.assertIn("Usage" if "Usage" in done.stdout else "usage", done.stdout)

    def test_the_version_names_every_library(self):
        text = run("--version", cwd=self.dir, check=0).stdout
        self.assertRegex(text, r"^dalle2-train \d+\.\d+\.\d+ \(LibTorch \d+\.\d+\.\d+\)\n")
        for name in ("fmt", "nlohmann_json", "libcurl", "OpenSSL", "libarchive", "libdeflate", "libjpeg(-turbo)?", "libpng",
                     "libwebp", "OpenCV", "protozero", "zlib", "CLI11"):
            self.assertRegex(text, rf"\b{name} \d+(\.\d+)+", name)
        self.assertRegex(text, r"(?m)^  (CUDA can be used|this LibTorch is only for the CPU|this machine has no NVIDIA driver|"
                               r"the CUDA part of LibTorch cannot be loaded|the NVIDIA driver shows no GPU)")

    def options_of(self, command):
        """The long options that the command's help lists."""
        return set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", run(*command, "--help", cwd=self.dir, check=0).stdout, re.M))

    def test_the_manual_page_has_every_option_of_every_command(self):
        page = run("man-page", cwd=self.dir, check=0).stdout
        for section in ["NAME", "DESCRIPTION"]:
            self.assertEqual(page.count(f".SH {section}\n"), 1, section)
        parts = dict(re.findall(r"^\.SH ([^\n]+)\n(.*?)(?=^\.SH |\Z)", page, re.M | re.S))
        self.assertGreaterEqual(len(parts), 14)
        for command in COMMANDS_WITH_OPTIONS:
            part = parts[" ".join(["dalle2-train", *command]) if command else "DESCRIPTION"]
            options = self.options_of(command) - {"--help"}
            self.assertGreaterEqual(len(options), 1, command)
            for option in options:
                self.assertIn("\n\\&  " + option.replace("-", "\\-"), part, command)
        if shutil.which("man"):
            (self.dir / "page.1").write_text(page)
            shown = subprocess.run(["man", "--warnings", "-l", str(self.dir / "page.1")], capture_output=True, text=True, check=True)
            self.assertEqual(shown.stderr, "")
            self.assertIn("--config,--config_file FILE", shown.stdout)

    def complete(self, *words):
        """What bash offers behind these words, the last of which is not finished."""
        (self.dir / "complete.bash").write_text(run("completion", "bash", cwd=self.dir, check=0).stdout)
        script = ('source complete.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dalle2_train; printf "%s\\n" "${COMPREPLY[@]}"')
        done = subprocess.run(["bash", "-c", script, "bash", "dalle2-train", *words], capture_output=True, text=True, cwd=self.dir)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_bash_completes_commands_options_values_and_files(self):
        (self.dir / "my.json").write_text("{}")
        (self.dir / "mine").mkdir()
        self.assertEqual(self.complete("shards", ""), {"demo", "make", "check", "order", "score", "encode", "embed"})
        self.assertEqual(self.complete("sa"), {"sample"})
        self.assertEqual(self.complete("--config", "my"), {"my.json"})
        self.assertEqual(self.complete("sample", "--out", "m"), {"mine"})
        self.assertEqual(self.complete("sample", "--sampler", "d"), {"ddpm", "ddim", "dpmpp"})
        self.assertEqual(self.complete("schema", ""), {"decoder", "prior", "vae", "clip"})
        self.assertEqual(self.complete("inspect", "my"), {"my.json"})
        self.assertEqual(self.complete("sample", "--seed", ""), set())
        for command in COMMANDS_WITH_OPTIONS:
            self.assertEqual(self.complete(*command, "--") - {"--help", "--version"},
                             self.options_of(command) - {"--help", "--version"}, command)

    def test_zsh_and_fish_take_their_completions(self):
        for shell, check in [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])]:
            script = run("completion", shell, cwd=self.dir, check=0).stdout
            for command in COMMANDS_WITH_OPTIONS:
                for option in self.options_of(command):
                    self.assertIn(f" {option[2:]} " if shell == "fish" else f"{option} ", script)
            if shutil.which(shell):
                (self.dir / shell).write_text(script)
                subprocess.run([*check, str(self.dir / shell)], check=True)
        self.refuse(2, "completion", "tcsh", expect=["bash", "zsh", "fish", "tcsh"])

    def test_usage_errors_exit_2(self):
        self.refuse(2, expect=["no --config"])
        self.refuse(2, "--confg", "x.json", expect=["--confg"])
        self.refuse(2, "sample", expect=["--out"])
        self.refuse(2, "sample", "--out", self.dir / "x", expect=["--checkpoint is missing"])
        self.refuse(2, "--config", "absent.json", expect=["absent.json", "no such file"])
        self.refuse(2, "shards", expect=["shards: expected one of its commands"])
        self.refuse(2, "schema", "decodr", expect=["decodr"])
        (self.dir / "grid.png").write_text("mine")
        self.refuse(2, "shards", "score", "--drawn", "x", "--heldout", "y", "--grid", "grid.png", expect=["--grid grid.png: the file exists"])
        self.refuse(2, "one", "two", "three", expect=["The following arguments were not expected: one two three\n"])
        self.refuse(2, "ema", "a.pth", "b.pth", "--grid", "--sigma", 1, expect=["The following argument was not expected: --grid\n"])
        self.refuse(2, "fsck", "--timesteps", 3,
                    expect=["  --timesteps is an option of: dalle2-train sample, dalle2-train evaluate.\n"])
        self.refuse(2, "--batch-size", 3, expect=["  The settings of a run are keys of its config."])

    def test_text_that_is_not_utf8_exits_2_by_our_message(self):
        # Python hands "\udcff" on as the byte 0xff.
        config = self.config()
        for arguments in (["--config", config, "--set", "/tracker/data_path=out\udcff"], ["inspect", "a\udced\udca0\udc80.pth"],
                          ["--config", "c\udcc0\udcaf.json"]):
            text = self.refuse(2, *arguments, expect=["of the command line", "expected UTF-8, got the byte 0x"])
            self.assertNotIn("json.exception", text)

    def test_config_faults_exit_2_and_are_listed_together(self):
        config = tiny_config(self.shards, "out")
        config["train"].update(lr=-1, epocs=3)
        config["decoder"]["unets"][0]["dim"] = "wide"
        self.refuse(2, "--config", write_config(self.dir / "bad.json", config),
                    expect=["/train/lr", "/train/epocs", "did you mean \"epochs\"", "/decoder/unets/0/dim"])
        self.assertEqual(harness.left_by_refused_start(self.dir / "out"), [], "a refused config must not leave files")

    def test_a_model_beyond_memory_exits_5_without_stack_frames(self):
        wide = {"dim": 1024, "cond_dim": 65536, "num_time_tokens": 65536}  # 70 TB for the tokens of the time
        options = [f"--set=/decoder/unets/0/{key}={value}" for key, value in wide.items()]
        text = self.refuse(5, "--config", self.config(), *options, "--dry-run",
                           expect=["allocate memory", "smaller model"])
        self.assertNotIn("frame #", text)

    def test_memory_and_processes_that_run_out_exit_5(self):
        config = self.config(train={"epochs": 1})
        for kilobytes in (590_000, 610_000, 650_000):  # with less, libraries end the process themselves
            with self.subTest(kilobytes):
                limit = kilobytes * 1024
                done = subprocess.run([BINARY, "--config", config], cwd=self.dir, env={**os.environ, "OMP_NUM_THREADS": "1"},
                                      capture_output=True, text=True, timeout=120,
                                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
                self.assertIn(done.returncode, (0, 5), done.stderr)
                if done.returncode == 5:
                    self.assertIn("memory", done.stderr)

    def copy_shards(self):
        shards = self.dir / "shards"
        shutil.copytree(self.shards, shards)
        return shards

    def test_a_damaged_shard_fails_the_check_and_spares_the_run(self):
        shards = self.dir / "shards"
        shutil.copytree(self.shards, shards)
        run("shards", "check", shards, "--img-embeddings", shards / "img_emb", cwd=self.dir, check=0)
        for shard in sorted(shards.glob("0*.tar"))[:4]:
            shard.write_bytes(b"x" * 4096)
        self.refuse(3, "shards", "check", shards, "--img-embeddings", shards / "img_emb", expect=["4 of 16 shards absent, damaged or empty"])
        shutil.copytree(self.shards, self.dir / "hole")
        (self.dir / "hole/000003.tar").unlink()
        self.refuse(3, "shards", "check", "hole/{000000..000015}.tar",
                    expect=["hole/{000000..000015}.tar: 1 of 16 shards absent, damaged or empty (listed above)"])
        self.train(write_config(self.dir / "c.json", tiny_config(shards, "out")))
        dropped = [record[key] for record in harness.records(self.dir / "out") for key in record if key.startswith("Dropped train: damaged shard")]
        self.assertEqual(len(dropped), 1)

    def test_output_that_cannot_be_written_exits_5(self):
        config = self.config()
        for command in (["--help"], ["--version"], ["shards", "check", "--help"], ["schema", "decoder"],
                        ["--config", config, "--dump-config"], ["--config", config, "--dry-run"],
                        ["shards", "check", self.shards], ["shards", "order", "--config", config],
                        ["shards", "order", "--config", config, "--print"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([harness.BINARY, *map(str, command)], cwd=self.dir, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(done.returncode, 5, (command, done.stderr))
            self.assertIn("the output cannot be written (stdout)", done.stderr)
        with open("/dev/full", "w") as full:  # of a training the files count
            done = subprocess.run([harness.BINARY, "--config", config], cwd=self.dir, stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("lines of this log are lost", done.stderr)
        self.assertTrue((self.dir / "out/checkpoint.pth").exists())

    def test_shards_check_explains_what_it_is_asked(self):
        shards = self.copy_shards()
        check = ("shards", "check")
        self.refuse(2, *check, shards / "{}.tar", expect=["SHARDS: ", "has {} for a number", "--last N", "there are 0 to 15"])
        self.refuse(2, *check, shards / "{}.tar", "--first", 4, "--last", 3, expect=["--first 4 is above --last 3"])
        self.refuse(2, *check, shards, "--last", 3, expect=["--last is only for SHARDS with {}"])
        self.refuse(2, *check, shards / "000000.tar", "--first", 3, expect=["--first is only for SHARDS with {}"])
        self.refuse(2, *check, "s3://bucket/x.tar", "--last", 3, expect=["SHARDS: \"s3://bucket/x.tar\" has no {}"])
        for width in (0, -1, 19, "x"):
            for option in ("--index-width", "--shard-width"):
                self.refuse(2, *check, shards, option, width, expect=[option, "expected a whole number from 1 to 18"])
        run(*check, shards / "{}.tar", "--last", 15, cwd=self.dir, check=0)
        (shards / "img_emb/odd").mkdir()
        self.refuse(3, *check, shards / "img_emb/{odd,odd}", expect=["is a folder, a file is expected"])

    def test_set_overrides_the_file_and_dump_config_shows_it(self):
        config = self.config()
        done = run("--config", config, "--set", "/train/lr=5e-4", "--dump-config", cwd=self.dir, check=0)
        dumped = json.loads(done.stdout)
        self.assertEqual(dumped["train"]["lr"], 5e-4)
        self.assertEqual(dumped["train"]["ema_inv_gamma"], 1.0)
        again = write_config(self.dir / "dumped.json", dumped)
        self.assertEqual(json.loads(run("--config", again, "--dump-config", cwd=self.dir, check=0).stdout), dumped)
        hidden = run("--config", config, "--set", '/tracker/save={"save_to": "url", "url": "https://u:canary@h.example/x?s=canary", "save_latest_to": "l.pth"}',
                     "--dump-config", cwd=self.dir, check=0)
        self.assertEqual(json.loads(hidden.stdout)["tracker"]["save"][0]["url"], "https://h.example/x")
        self.assertNotIn("canary", hidden.stdout + hidden.stderr)
        self.refuse(2, "--config", config, "--set", "/train/lrr=1", expect=["/train/lrr", "did you mean"])
        self.refuse(2, "--config", config, "--set", "/train/colour=1", expect=["/train/colour: no such key; known are: "])
        self.refuse(2, "--config", config, "--set", "/train/lr", "3e-4", expect=["Did you mean `--set /train/lr=3e-4`?"])
        self.refuse(2, "evaluate", "--config", config, "--set", "/data/x", "a b", expect=["Did you mean `--set '/data/x=a b'`?"])
        self.refuse(2, "smaple", expect=["smaple", "Did you mean `sample`?"])
        self.refuse(2, config, expect=["Did you mean `--config"])
        self.refuse(2, "train", "--config", config, expect=["Training has no command name: `dalle2-train --config"])
        hidden = run("https://user:canary@h.example/x.json", cwd=self.dir, check=2)
        self.assertIn("Did you mean `--config https://h.example/x.json`?", hidden.stderr)
        self.assertNotIn("canary", hidden.stdout + hidden.stderr)
        self.assertNotIn("Did you mean `--config", run("--config", config, "b.json", cwd=self.dir, check=2).stderr)
        self.refuse(2, "shards", "mkae", "pictures", expect=["Did you mean `make`?"])
        self.refuse(2, "--config", config, "--dry-urn", expect=["--dry-urn", "Did you mean `--dry-run`?"])
        for other, own in (("--steps", "--timesteps"), ("--num_inference_steps", "--timesteps"), ("--prompt", "--text")):
            self.refuse(2, "sample", other, "20", expect=[f"Did you mean `{own}`?"])

    def test_strict_turns_warnings_into_errors(self):
        path = self.config(train={"something_else_entirely": 1})
        self.refuse(0, "--config", path, "--dry-run", expect=["something_else_entirely"])
        self.refuse(2, "--config", path, "--strict", expect=["  /train/something_else_entirely: no such key\n"])

    def test_the_smoke_configs_train(self):
        run("shards", "demo", "--out", "runs/smoke/shards", "--num", 96, "--image-size", 16, cwd=self.dir, check=0)
        paths = sorted((harness.ROOT / "configs" / "smoke").glob("*.json"))
        self.assertGreaterEqual(len(paths), 2)
        for path in paths:
            run("--config", path, cwd=self.dir, check=0)
            self.assertTrue((self.dir / "runs/smoke" / f"{path.stem}.pth").is_file(), path)

    def test_an_error_is_the_last_on_the_screen(self):
        (self.dir / "bad.pth").write_bytes(b"no checkpoint at all")
        config = self.config(tracker={"load": {"load_from": "local", "file_path": "bad.pth"}})
        said = self.end_of(self.start("--config", config), 3)
        last = [line for line in said.splitlines() if not line.startswith("  ")][-1]
        self.assertTrue(last.startswith("error: bad.pth: "), said)

    def test_a_name_that_is_too_long_is_an_error_of_ours(self):
        name = "x" * 300
        self.refuse(2, "--config", name + ".json", expect=[name + ".json: no such file (--config"])
        self.refuse(2, "shards", "order", "--config", name + ".json", expect=["File name too long"])
        self.refuse(3, "shards", "check", name, expect=["File name too long"])

    def test_files_that_inspect_and_fsck_cannot_read(self):
        self.refuse(2, "inspect", expect=["file is required"])
        self.refuse(2, "inspect", "a.pth", "b.pth", expect=["b.pth", "`dalle2-train inspect --help` lists the options"])
        self.refuse(3, "inspect", "absent.pth", expect=["absent.pth: ", "No such file or directory"])
        (self.dir / "folder.pth").mkdir()
        self.refuse(3, "inspect", "folder.pth", expect=["folder.pth: ", "folder"])
        (self.dir / "folder.pth/bad.pth").write_bytes(b"no checkpoint at all")
        report = json.loads(run("fsck", "folder.pth", "--json", cwd=self.dir, check=3).stdout)
        self.assertFalse(report["intact"])
        self.assertEqual([file["state"] for file in report["files"]], ["damaged"])

    def test_evaluate_explains_what_it_cannot_do(self):
        self.refuse(2, "evaluate", expect=["--config is required"])
        self.refuse(2, "evaluate", "--config", "absent.json", expect=["--checkpoint is required"])
        self.refuse(2, "evaluate", "--config", "absent.json", "--checkpoint", "a.pth", expect=["absent.json: cannot read the config"])
        self.refuse(2, "evaluate", "--config", self.config(), "--checkpoint", "a.pth",
                    expect=["/evaluate: no metric is requested"])
        self.refuse(2, "evaluate", "--config", "a.json", "--checkpoint", "a.pth", "--split", "all", expect=["--split", "all"])
        prior = {"prior": {"net": {"dim": 8, "depth": 1}, "image_embed_dim": 8, "condition_on_text_encodings": False},
                 "data": {"image_url": "images", "text_url": "texts", "splits": {}, "batch_size": 4},
                 "train": {"device": "cpu"}, "tracker": {"log": {}, "save": {"save_latest_to": "latest.pth"}}}
        path = write_config(self.dir / "prior.json", prior)
        self.train(self.config())
        self.refuse(3, "evaluate", "--config", path, "--checkpoint", "out/checkpoint.pth",
                    expect=["out/checkpoint.pth: expected a checkpoint of a prior, got one of a decoder"])

    def test_sample_explains_what_does_not_fit(self):
        self.train(self.config())
        heldout = next((self.shards / "heldout").rglob("*.npy"))
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--num", "2", "--out", "x",
                    expect=["--image-embeds is missing", "32", "--text with --prior and --clip"])
        self.refuse(3, "sample", "--checkpoint", "out", "--num", "2", "--out", "x", expect=["got the folder of a run", "out/model.pth?"])
        self.refuse(3, "inspect", self.shards, expect=["got a folder without model.pth"])
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--num", "0", "--out", "x",
                    expect=["expected a whole number from 1 to 1000000, got 0"])
        write_npy(self.dir / "nan.npy", (2, 32), [float("nan")] * 64)
        self.refuse(3, "sample", "--checkpoint", "out/model.pth", "--image-embeds", "nan.npy", "--out", "x",
                    expect=["nan.npy", "not finite"])
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--image-embeds", heldout, "--num", "3", "--out", "x",
                    expect=["--num", "3"])
        write_npy(self.dir / "two.npy", (2, 32), [0.5] * 64)
        write_npy(self.dir / "flat.npy", (2, 3), [0.5] * 6)
        sample = ["sample", "--checkpoint", "out/model.pth", "--image-embeds", "two.npy", "--out", "x"]
        self.refuse(3, *sample, "--init-noise", "flat.npy", expect=["flat.npy: expected an array of 4 dimensions"])
        write_npy(self.dir / "noise.npy", (2, 3, 1, 1), [0.5] * 6)
        self.refuse(2, *sample, "--init-noise", "noise.npy", "--init-noise", "noise.npy",
                    expect=["--init-noise: expected 1 file, one for each sampled unet (1 to 1), got 2"])


if __name__ == "__main__":
    harness.main()
