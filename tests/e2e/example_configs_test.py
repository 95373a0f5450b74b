# SPDX-License-Identifier: MIT
"""The example configs of dalle2-pytorch and dalle2-laion: the first dry run names all that is missing, and once each message's
remedy is applied, the second says nothing new.
"""
import json
import re

import harness
from clip_runs import clip_config
from harness import ROOT, EndToEnd, free_port, main, run, write_npy

DATA = ROOT / "tests" / "config" / "data"
NETWORKS = ROOT / "tests" / "parity" / "fixtures" / "feature_networks"
WIDTH = 768  # of the embeddings in the examples


class ExampleConfigs(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = 40
        (cls.base / "emb").mkdir()
        for shard in cls.shards.glob("[0-9]*.tar"):
            write_npy(cls.base / "emb" / f"img_emb_{shard.stem}.npy", (rows, WIDTH), [1.0 / WIDTH ** 0.5] * rows * WIDTH)
        (cls.base / "images").mkdir()
        write_npy(cls.base / "images" / "images_0.npy", (rows, WIDTH), [1.0 / WIDTH ** 0.5] * rows * WIDTH)
        (cls.base / "texts").mkdir()
        (cls.base / "texts" / "texts.txt").write_text("".join(f"a cat {row}\n" for row in range(rows)))
        config = clip_config(cls.shards, "clip", train={"epochs": 1})
        config["clip"]["embed_dim"] = WIDTH
        config["clip"]["text_cfg"].update({"width": WIDTH, "heads": 12, "context_length": 77})
        run("--config", harness.write_config(cls.base / "clip.json", config), cwd=cls.base, check=0)

    def setUp(self):
        super().setUp()
        # Nothing of this machine's user, and a host that refuses at once.
        self.env = {"HOME": str(self.dir), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_ACCESS_KEY_ID": "a",
                    "AWS_SECRET_ACCESS_KEY": "b", "HF_TOKEN": "", "HF_HOME": "", "WANDB_API_KEY": "", "WANDB_MODE": ""}

    def dry_run(self, config, check):
        path = harness.write_config(self.dir / "config.json", config)
        return run("--config", path, "--dry-run", cwd=self.dir, env=self.env, check=check)

    def pointers(self, config):
        """Where the first dry run asks for something, each named once."""
        done = self.dry_run(config, check=2)
        named = re.findall(r"^  (/[\w/]+): ", done.stderr, re.MULTILINE)
        self.assertEqual(len(named), len(set(named)), done.stderr)
        self.assertIn(f"{len(named)} problems", done.stderr)
        self.assertNotIn("attempt", done.stderr)  # hosts are tried once
        self.said = done.stderr
        return named

    def remedy(self, config, pointer):
        data, evaluate = config["data"], config.get("evaluate", {})
        if pointer == "/data/allow_pipe":
            data["allow_pipe"] = True
        elif pointer == "/data/webdataset_base_url":
            data.update({"webdataset_base_url": f"{self.shards}/{{}}.tar", "shard_width": 6, "end_shard": harness.demo_shard_count(self.shards) - 1})
        elif pointer == "/data/img_embeddings_url":
            data["img_embeddings_url"] = str(self.base / "emb")
        elif pointer == "/data/image_url":
            data["image_url"] = str(self.base / "images")
        elif pointer == "/data/meta_url":
            data["meta_url"] = str(self.base / "texts")
        elif pointer.endswith("/clip/model"):
            config[pointer.split("/")[1]]["clip"]["model"] = str(self.base / "clip" / "latest.pth")
        elif pointer == "/evaluate/FID/feature_extractor_weights_path":
            evaluate["FID"]["feature_extractor_weights_path"] = str(NETWORKS / "ours.pt")
        elif pointer == "/evaluate/LPIPS/weights_path":
            evaluate["LPIPS"].update({"weights_path": str(NETWORKS / "lpips.pt"), "net_type": "alex"})  # what the fixture is
        elif re.fullmatch(r"/tracker/save/\d", pointer):
            config["tracker"]["save"][int(pointer[-1])] = {"save_to": "local", "save_latest_to": f"{pointer[-1]}.pth"}
        else:
            self.fail(f"{pointer}: no remedy is known\n{self.said}")

    def mended(self, name, expected):
        config = json.loads((DATA / name).read_text())
        pointers = self.pointers(config)
        self.assertEqual(sorted(pointers), sorted(expected))
        for pointer in pointers:
            self.remedy(config, pointer)
        config["train"]["device"] = "cpu"
        self.assertIn("nothing was trained or written (--dry-run)", self.dry_run(config, check=0).stdout)

    def test_the_decoder_example(self):
        self.mended("reference_example.json", [
            "/data/allow_pipe", "/data/webdataset_base_url", "/data/img_embeddings_url", "/evaluate/FID/feature_extractor_weights_path",
            "/evaluate/LPIPS/weights_path", "/tracker/save/0", "/tracker/save/1"])
        for remedy in ("s3cmd", "scripts/export_inception.py", "scripts/export_lpips.py", "WANDB_API_KEY", "HF_TOKEN"):
            self.assertIn(remedy, self.said)

    def test_the_decoder_test_config(self):
        self.mended("reference_test.json", ["/data/webdataset_base_url", "/decoder/clip/model", "/evaluate/FID/feature_extractor_weights_path",
                                            "/evaluate/LPIPS/weights_path"])
        self.assertIn("scripts/clip_vocabulary.sh", self.said)

    def test_the_prior_example(self):
        self.mended("reference_prior_example.json", ["/prior/clip/model", "/data/image_url", "/data/meta_url"])

    def test_a_start_names_all_too_but_asks_no_host(self):
        config = json.loads((DATA / "reference_example.json").read_text())
        done = run("--config", harness.write_config(self.dir / "config.json", config), cwd=self.dir, env=self.env, check=2)
        self.assertIn("6 problems", done.stderr)
        self.assertNotIn("/data/img_embeddings_url", done.stderr)
        self.assertEqual([path.name for path in self.dir.iterdir()], ["config.json"])

    def test_one_thing_that_is_missing_keeps_its_exit_code(self):
        config = harness.tiny_config(self.shards, "out")
        config["data"]["webdataset_base_url"] = "absent/{}.tar"
        self.assertIn("absent/{}.tar", self.dry_run(config, check=3).stderr)
        config["data"]["img_embeddings_url"] = "nowhere"
        done = self.dry_run(config, check=2)
        self.assertIn("2 problems", done.stderr)
        self.assertIn("/data/img_embeddings_url: there is no file or folder 'nowhere'", done.stderr)


if __name__ == "__main__":
    main()
