# SPDX-License-Identifier: MIT
"""The command line: help, exit codes, and what a user reads after a mistake."""
import json
import pathlib
import shutil
import unittest

import harness
from harness import EndToEnd, run, tiny_config, write_config, write_npy

SUBCOMMANDS = [[], ["sample"], ["inspect"], ["convert"], ["schema"], ["shards"], ["shards", "demo"],
               ["shards", "make"], ["shards", "check"], ["shards", "order"],
               ["shards", "score"]]


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

    def refuse_config(self, code, change, *expect):
        config = tiny_config(self.shards, "out")
        change(config)
        self.refuse(code, "--config", write_config(self.dir / "bad.json", config), expect=expect)
        self.assertFalse((self.dir / "out").exists(), "a refused config must not leave files")

    def test_every_command_has_a_help_text(self):
        for command in SUBCOMMANDS:
            done = run(*command, "--help", cwd=self.dir, check=0)
            self.assertIn("Usage" if "Usage" in done.stdout else "usage", done.stdout)
            for line in done.stdout.splitlines():
                self.assertLess(len(line), 140, line)

    def test_the_version_names_libtorch(self):
        self.assertIn("LibTorch", run("--version", cwd=self.dir, check=0).stdout)

    def test_usage_errors_exit_2(self):
        self.refuse(2, expect=["no --config"])
        self.refuse(2, "--confg", "x.json", expect=["--confg"])
        self.refuse(2, "sample", expect=["--checkpoint"])
        self.refuse(2, "--config", "absent.json", expect=["absent.json", "no such file"])
        self.refuse(2, "shards", expect=["subcommand"])
        self.refuse(2, "schema", "decodr", expect=["decodr"])

    def test_config_faults_exit_2_and_are_listed_together(self):
        def change(config):
            config["train"]["lr"] = -1
            config["train"]["epocs"] = 3
            config["decoder"]["unets"][0]["dim"] = "wide"
        self.refuse_config(2, change, "/train/lr", "/train/epocs", "did you mean \"epochs\"", "/decoder/unets/0/dim")

    def test_json_that_does_not_parse_names_the_place(self):
        (self.dir / "bad.json").write_text('{"decoder": {,}}')
        self.refuse(2, "--config", "bad.json", expect=["bad.json", "line 1"])

    def test_json_that_is_empty_or_nested_without_end_is_refused(self):
        (self.dir / "empty.json").write_text("")
        self.refuse(2, "--config", "empty.json", expect=["empty.json", "empty"])
        (self.dir / "deep.json").write_text("[" * 100000 + "]" * 100000)
        self.refuse(2, "--config", "deep.json", expect=["deep.json", "levels deep"])
        self.refuse(2, "--config", self.config(), "--set", "/seed=" + "[" * 50000 + "]" * 50000, expect=["levels deep"])

    def test_a_model_beyond_memory_exits_5_without_stack_frames(self):
        text = self.refuse(5, "--config", self.config(), "--set", "/decoder/unets/0/dim=1000000000000", "--dry-run",
                           expect=["allocate memory", "smaller model"])
        self.assertNotIn("frame #", text)

    def test_a_damaged_shard_fails_the_check_and_spares_the_run(self):
        shards = self.dir / "shards"
        shutil.copytree(self.shards, shards)
        run("shards", "check", shards, "--img-embeddings", shards / "img_emb", cwd=self.dir, check=0)
        for shard in sorted(shards.glob("0*.tar"))[:4]:
            shard.write_bytes(b"x" * 4096)
        self.refuse(3, "shards", "check", shards, "--img-embeddings", shards / "img_emb", expect=["4 of 16 shards are damaged"])
        self.train(write_config(self.dir / "c.json", tiny_config(shards, "out")))

    def test_a_feature_that_is_not_there_yet_is_refused_by_name(self):
        self.refuse_config(2, lambda c: c["decoder"].update(clip={"make": "openai"}), "/decoder/clip", "not available yet")
        self.refuse_config(2, lambda c: c["evaluate"].update(FID={"feature": 64}), "/evaluate/FID", "not available yet")
        self.refuse_config(2, lambda c: c["tracker"].update(log={"log_type": "wandb"}), "/tracker/log", "not available yet")
        self.refuse_config(2, lambda c: c["data"].update(webdataset_base_url="gs://bucket/{}.tar"),
                           "/data/webdataset_base_url", "for other places use")

    def test_an_existing_data_path_without_overwrite_exits_2(self):
        (self.dir / "out").mkdir()
        config = tiny_config(self.shards, "out")
        config["tracker"]["overwrite_data_path"] = False
        self.refuse(2, "--config", write_config(self.dir / "c.json", config), expect=["out", "already exists", "overwrite_data_path"])

    def test_an_absent_loader_file_exits_2(self):
        self.refuse_config(2, lambda c: c["tracker"].update(load={"load_from": "local", "file_path": "nowhere.pth"}),
                           "Model not found at nowhere.pth")

    def test_an_unknown_placeholder_exits_2(self):
        self.refuse_config(2, lambda c: c["tracker"].update(save={"save_to": "local", "save_latest_to": "a_{epohc}.pth"}), "epohc")
        self.refuse_config(2, lambda c: c["tracker"].update(save={"save_to": "local", "save_latest_to": "../a.pth"}), "..")

    def test_data_without_one_usable_sample_exits_3(self):
        self.refuse_config(3, lambda c: c["data"].update(webdataset_base_url="nowhere/{}.tar"), "nowhere")

    def test_a_damaged_checkpoint_exits_3(self):
        (self.dir / "bad.pth").write_bytes(b"no checkpoint at all")
        self.refuse(3, "inspect", "bad.pth", expect=["bad.pth"])
        self.assertIn("bad.pth: damaged", run("fsck", "bad.pth", cwd=self.dir, check=3).stdout)
        self.refuse(3, "fsck", "nowhere.pth", expect=["nowhere.pth", "no such file or folder"])
        self.refuse(3, "sample", "--checkpoint", "bad.pth", "--out", "x", expect=["bad.pth"])
        self.refuse(3, "convert", "bad.pth", "x.safetensors", expect=["bad.pth"])
        (self.dir / "bad.safetensors").write_bytes(b"\xff" * 64)
        self.refuse(3, "inspect", "bad.safetensors", expect=["bad.safetensors"])

    def test_embeddings_of_another_width_are_refused_before_training(self):
        self.refuse_config(3, lambda c: c["decoder"]["unets"][0].update(image_embed_dim=48), "48", "32")

    def test_set_overrides_the_file_and_dump_config_shows_it(self):
        config = self.config()
        done = run("--config", config, "--set", "/train/lr=5e-4", "--dump-config", cwd=self.dir, check=0)
        dumped = json.loads(done.stdout)
        self.assertEqual(dumped["train"]["lr"], 5e-4)
        self.assertEqual(dumped["train"]["ema_inv_gamma"], 1.0)
        again = write_config(self.dir / "dumped.json", dumped)
        self.assertEqual(json.loads(run("--config", again, "--dump-config", cwd=self.dir, check=0).stdout), dumped)
        self.refuse(2, "--config", config, "--set", "/train/lrr=1", expect=["/train/lrr", "did you mean"])

    def test_strict_turns_warnings_into_errors(self):
        config = tiny_config(self.shards, "out")
        config["train"]["something_else_entirely"] = 1
        path = write_config(self.dir / "c.json", config)
        self.refuse(0, "--config", path, "--dry-run", expect=["something_else_entirely"])
        self.refuse(2, "--config", path, "--strict", expect=["something_else_entirely"])

    def test_every_shipped_config_is_valid(self):
        configs = [path for path in (harness.ROOT / "configs").rglob("*.json") if path.parent.name != "schema"]
        self.assertGreaterEqual(len(configs), 6)
        for path in configs:
            done = run("--config", path, "--strict", "--dump-config", cwd=self.dir, check=0)
            self.assertEqual(done.stderr, "", path)

    def test_the_smoke_configs_train(self):
        run("shards", "demo", "--out", "runs/smoke/shards", "--num", 96, "--image-size", 16, cwd=self.dir, check=0)
        for path in sorted((harness.ROOT / "configs" / "smoke").glob("*.json")):
            run("--config", path, cwd=self.dir, check=0)
            self.assertTrue((self.dir / "runs/smoke" / f"{path.stem}.pth").is_file(), path)

    def test_the_schema_is_json(self):
        schema = json.loads(run("schema", "decoder", cwd=self.dir, check=0).stdout)
        self.assertIn("2020-12", schema["$schema"])

    def test_sample_explains_what_does_not_fit(self):
        self.train(self.config())
        heldout = next((self.shards / "heldout").rglob("*.npy"))
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--num", "2", "--out", "x",
                    expect=["--image-embeds is missing", "32"])
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--num", "0", "--out", "x",
                    expect=["expected a whole number from 1 to 1000000, got 0"])
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--image-embeds", heldout, "--cond-scale", "nan", "--out", "x",
                    expect=["--cond-scale", "nan"])
        (self.dir / "taken").write_text("")
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--image-embeds", heldout, "--out", "taken",
                    expect=["--out taken"])
        write_npy(self.dir / "nan.npy", (2, 32), [float("nan")] * 64)
        self.refuse(3, "sample", "--checkpoint", "out/model.pth", "--image-embeds", "nan.npy", "--out", "x",
                    expect=["nan.npy", "not finite"])
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--image-embeds", heldout, "--num", "3", "--out", "x",
                    expect=["--num", "3"])
        self.refuse(2, "sample", "--checkpoint", "out/model.pth", "--image-embeds", heldout, "--timesteps", "5000", "--out", "x",
                    expect=["5000", "50"])
        self.refuse(3, "sample", "--checkpoint", "out/model.pth", "--image-embeds", "absent.npy", "--out", "x", expect=["absent.npy"])


if __name__ == "__main__":
    harness.main()
