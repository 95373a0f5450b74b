# SPDX-License-Identifier: MIT
"""Every shell command of README.md and docs/*.md: it runs, or the page says why it does not.

A fenced `sh` block runs in a sandbox of its page, in the order of the page. Above its fence may stand

    <!-- not run: REASON -->    REASON is one of REASONS; the words of its commands are checked all the same
    <!-- after: HEADING -->     it needs what the blocks below that heading leave, and runs behind them

The sandbox has the repository's configs with small networks, and stand-ins for the reader's own files (`my.json`, `my_pictures`,
`runs/x`, `embeddings.npy`, ...). `shards demo --num` is capped, and what `init` writes gets a small network as well. All else is what the
page says.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys

import harness
from bad_server import Server
from harness import ROOT, BINARY, run, tiny_config, without_comments, write_config, write_npy
from hub_double import HubDouble
from prior_data import DIM, TEXT, make_embeddings
from s3_double import S3Double
from wandb_double import WandbDouble

REASONS = {
    "network": "installs or downloads something",
    "GPU": "needs a GPU",
    "long": "takes minutes or hours",
    "other program": "is about a program that is not ours",
}
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# The pages about training run in one sandbox, in the order in which a reader comes to them: a block may wait for a heading of any.
TRAINING_PAGES = [f"docs/{name}.md" for name in ("data", "several-processes", "decoder", "vae", "prior", "training-options", "sampling",
                                                 "evaluation", "run-output", "resuming", "troubleshooting")]
FEWEST_RUN = 45  # commands; there are more, but one may go
DEMO_PICTURES = 96
PICTURES = 40

FENCE = re.compile(r"^( *)```(\w*)\s*$")
MARK = re.compile(r"^ *<!-- (not run|after): (.*) -->$")


class Block:
    def __init__(self, page, line, heading, text, not_run=None, after=None):
        self.page, self.line, self.heading, self.text = page, line, heading, text
        self.not_run, self.after = not_run, after

    def __str__(self):
        return f"{self.page}:{self.line}"

    def commands(self):
        """Words of each command, without comments, assignments and what a shell would make of them."""
        joined = self.text.replace("\\\n", " ")
        for line in joined.splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"^\w+=", words[0]):
                words = words[1:]
            if words:
                yield words


def blocks_of(page, text):
    """Every fenced block that is shell. A fence without a language holds output, never commands."""
    blocks, heading, fence, marks = [], "", None, {}
    for number, line in enumerate(text.splitlines(), start=1):
        opened = FENCE.match(line)
        if fence is None:
            if line.startswith("#"):
                heading = line.lstrip("#").strip()
            if opened:
                fence = (opened.group(2), number, [])
                continue
            mark = MARK.match(line)
            if line.strip() or mark:
                marks = {mark.group(1): mark.group(2)} if mark else {}
        elif opened and not opened.group(2):
            language, begin, lines = fence
            if language in ("sh", "bash", "shell", "console"):
                blocks.append(Block(page, begin, heading, "\n".join(lines) + "\n", marks.get("not run"), marks.get("after")))
            elif language == "" and any(re.match(r"^\s*(\$ |\./|dalle2-train |python3? )", line) for line in lines):
                raise AssertionError(f"{page}:{begin}: a block of commands says so: ```sh")
            fence, marks = None, {}
        else:
            fence[2].append(line)
    return blocks


def in_order(blocks):
    """Those that wait for a heading's blocks come right behind the last of them."""
    ordered = [block for block in blocks if not block.after]
    for block in (block for block in blocks if block.after):
        places = [i for i, other in enumerate(ordered) if other.heading == block.after]
        if not places:
            raise AssertionError(f"{block}: no block stands below the heading \"{block.after}\"")
        ordered.insert(places[-1] + 1, block)
    return ordered


def make_pictures(folder):
    folder.mkdir()
    for i in range(PICTURES):
        (folder / f"{i:03}.png").write_bytes(harness.png([[i * 6, 255 - i * 6, 128] * 64] * 64))
        (folder / f"{i:03}.txt").write_text(f"picture {i}")


def smaller(config):
    """The same config with networks and epochs that take a second."""
    if "decoder" in config:
        decoder = config["decoder"]
        for unet in decoder["unets"]:
            unet.update({"dim": 8, "dim_mults": unet["dim_mults"][:2] and [1, 2], "resnet_groups": 4, "num_resnet_blocks": 1,
                         "num_time_tokens": 1})
        many = len(decoder["unets"]) > 1
        decoder["sample_timesteps"] = [2] * len(decoder["unets"]) if many else 2
        config["train"].update({"epochs": 1, "epoch_samples": 16, "n_sample_images": 2})
        config["data"]["batch_size"] = 8
    elif "vae" in config:
        config["vae"].update({"dim": 16, "codebook_size": 16})
        config["train"].update({"num_train_steps": 3, "save_results_every": 2, "save_model_every": 2})
    elif "clip" in config:
        config["clip"]["vision_cfg"].update({"layers": 1, "width": 16, "head_width": 8})
        config["clip"]["text_cfg"].update({"width": 16, "heads": 2, "layers": 1})
        config["clip"]["tokenizer"]["train"] = 540
        config["train"].update({"epochs": 1, "epoch_samples": 16, "device": "cpu", "mixed_precision": "no"})
        config["data"]["batch_size"] = 8
    else:
        config["prior"].update({"image_embed_dim": DIM, "timesteps": 20, "sample_timesteps": 4})
        config["prior"]["net"].update({"dim": DIM, "depth": 1, "dim_head": 8, "heads": 2, "num_timesteps": None,
                                       "max_text_len": 4})
        config["data"].update({"batch_size": 6, "splits": {"train": 0.8, "val": 0.1, "test": 0.1}})
        config["train"].update({"epochs": 1, "eval_timesteps": [4, 20], "device": "cpu", "amp": False})
    return config


def make_smaller(path):
    write_config(path, smaller(json.loads(without_comments(path.read_text()))))


class DocsCommands(harness.Folders):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.blocks = {page: blocks_of(page, (ROOT / page).read_text()) for page in PAGES}
        cls.helps = {}

    # The sandbox.

    def program(self, sandbox):
        """dalle2-train on the PATH and as build/bin/dalle2-train; demo sets and the networks of `init` are small."""
        text = ("#!/usr/bin/env bash\nset -eu\nargs=()\nlast=''\nout=''\n"
                "for word in \"$@\"; do\n"
                "  if [ \"$last\" = --out ]; then out=$word; fi\n"
                f"  if [ \"$last\" = --num ] && [ \"${{1-}} ${{2-}}\" = 'shards demo' ]; then word={DEMO_PICTURES}; fi\n"
                "  args+=(\"$word\"); last=$word\ndone\n"
                "if [ \"${1-}\" = init ]; then\n"
                f"  {shlex.quote(str(BINARY))} \"${{args[@]}}\"\n"
                f"  exec {shlex.join([sys.executable, __file__])} --smaller \"$out\"\n"
                "fi\n"
                f"exec {shlex.quote(str(BINARY))} \"${{args[@]}}\"\n")
        for path in (sandbox / "bin/dalle2-train", sandbox / "build/bin/dalle2-train"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def sandbox(self, page):
        sandbox = self.base / page.replace("/", "-")
        sandbox.mkdir()
        self.program(sandbox)
        (sandbox / "configs").mkdir()
        for path in (ROOT / "configs").glob("*.json"):
            shutil.copy(path, sandbox / "configs" / path.name)
            make_smaller(sandbox / "configs" / path.name)
        make_pictures(sandbox / "my_pictures")
        mine = next(text for text in re.findall(r"```json\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
        (sandbox / "my.json").write_text(mine)
        make_smaller(sandbox / "my.json")
        return sandbox

    def prepare_training(self, sandbox):
        """What a reader of the pages about training has: shards, runs in runs/x and runs/y, embeddings."""
        config = json.loads((sandbox / "my.json").read_text())
        run("shards", "make", "--from", "my_pictures", "--out", "mine", "--per-shard", 1, cwd=sandbox, check=0)
        config["data"].update({"webdataset_base_url": "mine/{}.tar", "end_shard": PICTURES - 1})  # enough for four ranks
        write_config(sandbox / "my.json", config)
        shutil.copytree(sandbox / "my_pictures", sandbox / "pictures")
        (sandbox / "embeddings").mkdir()
        for shard in range(10):
            write_npy(sandbox / f"embeddings/img_emb_{shard:06}.npy", (4, 8), [0.1 * (i % 7 - 3) for i in range(32)])
        demo, runs = self.base / "demo-shards", sandbox / "runs"
        if not demo.exists():
            run("shards", "demo", "--out", demo, "--num", DEMO_PICTURES, "--image-size", 16, cwd=self.base, check=0)
        runs.mkdir()
        x = tiny_config(demo, "runs/x", train={"epoch_samples": 32, "post_hoc_ema": {"save_every_n_steps": 2}})
        run("--config", write_config(sandbox / "x.json", x), cwd=sandbox, check=0)
        shutil.copytree(runs / "x", runs / "y")
        write_npy(sandbox / "embeddings.npy", (2, 32), [0.1 * (i % 7 - 3) for i in range(64)])
        for name in ("stamps", "emoji"):  # in place of what only the network has
            shutil.copytree(sandbox / "mine", runs / name / "shards")
        vectors = sandbox / "embeddings"
        make_embeddings(vectors)
        (vectors / "encodings").rename(vectors / "text_encodings")
        write_npy(sandbox / "texts.npy", (2, DIM), [0.25] * (2 * DIM))
        write_npy(sandbox / "encodings.npy", (2, TEXT, DIM), [0.25] * (2 * TEXT * DIM))

    def prepare_checkpoints(self, sandbox):
        """What a reader of docs/checkpoints.md has: a base, a run with adapters on it, two stages trained apart."""
        demo = self.base / "demo-shards"
        if not demo.exists():
            run("shards", "demo", "--out", demo, "--num", DEMO_PICTURES, "--image-size", 16, cwd=self.base, check=0)
        few = {"epoch_samples": 16, "n_sample_images": 0}
        run("--config", write_config(sandbox / "base.json", tiny_config(demo, "base", train=few)), cwd=sandbox, check=0)
        adapters = tiny_config(demo, ".tracker_data", train={**few, "lora": {"rank": 2}})
        adapters["tracker"]["load"] = {"load_from": "local", "file_path": "base/model.pth"}
        run("--config", write_config(sandbox / "lora.json", adapters), cwd=sandbox, check=0)
        shutil.copy(sandbox / "base/checkpoint.pth", sandbox / "base.pth")
        shutil.copy(sandbox / ".tracker_data/checkpoint.pth", sandbox / "checkpoint.pth")
        for name in ("lora.safetensors", "in.safetensors"):
            shutil.copy(sandbox / ".tracker_data/lora.safetensors", sandbox / name)
        for name, mask in (("first", [True, False]), ("second", [False, True])):
            stages = tiny_config(demo, name, train={**few, "unet_training_mask": mask})
            unet = stages["decoder"]["unets"][0]
            upper = {key: value for key, value in unet.items() if key != "image_embed_dim"}
            del stages["decoder"]["image_size"]
            stages["decoder"].update({"unets": [unet, upper], "image_sizes": [8, 16], "sample_timesteps": [3, 3]})
            run("--config", write_config(sandbox / "cascade.json", stages), cwd=sandbox, check=0)
            shutil.copy(sandbox / name / "checkpoint.pth", sandbox / f"{name}.pth")

    # What every command keeps to, whether it is run or not.

    def known_options(self, subcommand):
        if subcommand not in self.helps:
            text = run(*subcommand, "--help", cwd=self.base, check=0).stdout
            self.helps[subcommand] = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
        return self.helps[subcommand]

    def check_words(self, block, words):
        name = pathlib.PurePath(words[0]).name
        if name == "dalle2-train":
            subcommand = tuple(words[1:3]) if words[1] == "shards" else tuple(words[1:2])
            subcommand = () if words[1].startswith("-") else subcommand
            known = self.known_options(subcommand)
            for word in words[1:]:
                if word.startswith("--"):
                    self.assertIn(word.split("=")[0], known, f"{block}: dalle2-train {' '.join(subcommand)} has no such option")
        for word in words:
            path = word[2:] if word.startswith("./") else word
            if re.match(r"^(scripts|tests|configs)/[\w./-]+$", path):
                self.assertTrue((ROOT / path).exists(), f"{block}: there is no {path}")

    def test_every_block_runs_or_says_why_not_and_names_what_there_is(self):
        commands = 0
        for page, blocks in self.blocks.items():
            for block in blocks:
                self.assertFalse(block.not_run and block.after, block)
                if block.not_run:
                    self.assertIn(block.not_run, REASONS, f"{block}: why is it not run?")
                for words in block.commands():
                    self.check_words(block, words)
                    commands += not block.not_run
                    if block.not_run == "other program":
                        self.assertNotIn("dalle2", words[0], block)
        self.assertGreaterEqual(commands, FEWEST_RUN)

    def run_pages(self, pages, prepare=lambda sandbox: None, env=None):
        sandbox = self.sandbox(pages[0])
        prepare(sandbox)
        env = {**os.environ, "PATH": f"{sandbox / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", **(env or {})}
        for block in in_order([block for page in pages for block in self.blocks[page]]):
            if block.not_run:
                continue
            done = subprocess.run(["bash", "-euxo", "pipefail", "-c", block.text], cwd=sandbox, env=env, timeout=300,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            with self.subTest(str(block)):
                self.assertEqual(done.returncode, 0, f"{block}\n{done.stdout[-3000:]}")

    def test_the_readme(self):
        self.run_pages(["README.md"])

    def test_the_quick_tour(self):
        self.run_pages(["docs/index.md"])

    def test_training(self):
        self.run_pages(TRAINING_PAGES, self.prepare_training)

    def test_checkpoints(self):
        self.run_pages(["docs/checkpoints.md"], self.prepare_checkpoints)

    def test_tracking(self):
        """Doubles stand for the services."""
        for name in ("bucket", "web"):
            (self.base / name).mkdir()
        with WandbDouble() as wandb, HubDouble() as hub, S3Double(self.base / "bucket", "my-bucket") as store, \
                Server(self.base / "web") as web:
            self.run_pages(["docs/tracking.md"], env={"HOME": str(self.base), "WEB": web.url, **wandb.env(), **hub.env(),
                                                      **store.env()})
        self.assertTrue(wandb.only_run().complete and wandb.only_run().history)
        self.assertIn("README.md", hub.repos["somebody/stamps"].files["main"])

    def test_no_other_page_has_blocks_to_run(self):
        for page in PAGES:
            if page in ("README.md", "docs/index.md", "docs/checkpoints.md", "docs/tracking.md", *TRAINING_PAGES):
                continue
            self.assertEqual([str(block) for block in self.blocks[page] if not block.not_run], [],
                             "give the page a test like test_training")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--smaller"]:
        make_smaller(pathlib.Path(sys.argv[2]))
    else:
        harness.main()
