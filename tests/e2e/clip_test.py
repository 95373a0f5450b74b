# SPDX-License-Identifier: MIT
"""A CLIP from captioned shards to a picture from text: training, resuming, embedding shards, a prior and a decoder on them, and what
can be wrong."""
import json
import math
import os
import pathlib
import shutil
import signal
import struct
import tarfile
import threading

import harness
from bad_server import Server
from clip_runs import WIDTH, clip_config
from harness import EndToEnd, checkpoint_content, main, run


def slerp(a, b, share):
    """Between embeddings of length 1."""
    angle = math.acos(max(-1, min(1, sum(x * y for x, y in zip(a, b)))))
    return [(math.sin((1 - share) * angle) * x + math.sin(share * angle) * y) / math.sin(angle) for x, y in zip(a, b)]


class Clip(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = cls.base / "trained"
        cls.trained.mkdir()
        run("--config", cls.clip_config(cls.trained, train={"epochs": 8}), cwd=cls.trained, check=0)

    @classmethod
    def clip_config(cls, folder, name="clip.json", out="clip", **sections):
        return harness.write_config(folder / name, clip_config(cls.shards, out, **sections))

    def embed(self, *more, check=0, clip=None, out="embedded"):
        return run("shards", "embed", self.shards, "--clip", clip or self.trained / "clip/model.pth", "--out", out, *more, cwd=self.dir,
                   check=check)

    def test_a_clip_learns_and_logs_what_it_finds(self):
        records = harness.records(self.trained / "clip")
        losses = [record["Training Loss"] for record in records if "Training Loss" in record]
        self.assertLess(losses[-1], losses[0] - 0.3)
        figures = [record for record in records if "image_to_text_R@1" in record]
        self.assertEqual(len(figures), 8)
        for name in ("image_to_text_R@1", "image_to_text_R@5", "text_to_image_R@1", "text_to_image_R@5"):
            self.assertTrue(all(0 <= record[name] <= 1 for record in figures), name)
        self.assertGreaterEqual(figures[-1]["image_to_text_R@5"], figures[-1]["image_to_text_R@1"])
        found = json.loads(run("evaluate", "--config", self.trained / "clip.json", "--checkpoint", "clip/checkpoint.pth",
                               cwd=self.trained, check=0).stdout)
        # The same samples and weights as at the end of the run, whose loss is that of its batches.
        self.assertAlmostEqual(found["image_to_text_R@1"], figures[-1]["image_to_text_R@1"], places=6)
        whole = [record["Validation Loss"] for record in records if "Validation Loss" in record][-1]
        self.assertAlmostEqual(found["loss"], whole, places=4)

    def test_a_run_that_is_stopped_before_its_first_step_keeps_its_vocabulary(self):
        # The shards can be read until the run has begun, and then not before `go` is there.
        (self.dir / "read.sh").write_text("if [ -e cut/run.json ]; then touch waiting; until [ -e go ]; do sleep 0.1; done; fi; cat $1\n")
        shards = {"webdataset_base_url": f"pipe:sh read.sh {self.shards}/{{}}.tar", "allow_pipe": True}
        run("--config", self.clip_config(self.dir, "whole.json", "whole", data=shards), cwd=self.dir, check=0)
        config = self.clip_config(self.dir, "cut.json", "cut", data=shards)
        process = harness.start("--config", config, cwd=self.dir)
        harness.wait_for(process, (self.dir / "waiting").exists)
        process.send_signal(signal.SIGTERM)
        self.end_of(process, 75)
        (self.dir / "go").touch()
        tree = checkpoint_content(self.dir / "cut/checkpoint.pth", self.dir)[1]
        self.assertEqual(tree["samples_seen"], 0)
        self.assertTrue(tree["clip_merges"])
        run("--config", config, cwd=self.dir, check=0)
        expected, found = (checkpoint_content(self.dir / name / "checkpoint.pth", self.dir)[0] for name in ("whole", "cut"))
        self.assertEqual(expected, found)

    def test_text_becomes_pictures(self):
        self.assertIn("96 embeddings in 16 shards", self.embed().stdout)
        shape, images = harness.read_npy(self.dir / "embedded/img_emb/000000.npy")
        self.assertEqual(shape, (6, WIDTH))
        self.assertEqual(harness.read_npy(self.dir / "embedded/text_emb/000000.npy")[0], (6, WIDTH))
        for row in range(6):
            self.assertAlmostEqual(sum(value ** 2 for value in images[row * WIDTH:(row + 1) * WIDTH]), 1, places=4)
        with tarfile.open(self.dir / "embedded/000000.tar") as tar:
            self.assertEqual(sum(name.endswith(".img_emb.npy") for name in tar.getnames()), 6)
        # The same CLIP as open_clip's file.
        (self.dir / "open_clip").mkdir()
        run("convert", self.trained / "clip/model.pth", "open_clip/clip.safetensors", "--open-clip", cwd=self.dir, check=0)
        self.embed(clip="open_clip/clip.safetensors", out="embedded2")
        for name in ("img_emb", "text_emb"):
            first, second = ((self.dir / out / name / "000000.npy").read_bytes() for out in ("embedded", "embedded2"))
            self.assertEqual(first, second, name)
        prior = {"prior": {"net": {"dim": WIDTH, "depth": 1, "dim_head": 8, "heads": 2, "max_text_len": 1}, "image_embed_dim": WIDTH,
                           "timesteps": 20, "sample_timesteps": 4, "condition_on_text_encodings": False},
                 "data": {"image_url": "embedded/img_emb", "text_url": "embedded/text_emb", "batch_size": 16,
                          "splits": {"train": 0.8, "val": 0.1, "test": 0.1}},
                 "train": {"epochs": 1, "device": "cpu", "eval_timesteps": [4]},
                 "tracker": harness.tracker("prior")}
        run("--config", harness.write_config(self.dir / "prior.json", prior), cwd=self.dir, check=0)
        config = json.loads(pathlib.Path(self.config("decoder.json", "decoder")).read_text())
        config["decoder"]["unets"][0]["image_embed_dim"] = WIDTH
        config["data"].update(webdataset_base_url="embedded/{}.tar", img_embeddings_url=None, embeddings_in_tar=True)
        run("--config", harness.write_config(self.dir / "decoder.json", config), cwd=self.dir, check=0)
        # The rows of the folders follow the embedded samples, not the digits of the keys.
        done = run("--config", "decoder.json", "--set", "/data/img_embeddings_url=embedded/img_emb", "--dry-run", cwd=self.dir, check=3)
        self.assertIn("/data/img_embeddings_url: `shards embed` made embedded/img_emb: its rows follow the samples", " ".join(done.stderr.split()))
        bare = self.dir / "embedded" / "bare"
        shutil.copytree(self.shards, bare, ignore=shutil.ignore_patterns("*_emb*"))
        done = run("init", "embedded/bare", "--out", "first.json", cwd=self.dir, check=0)
        self.assertIn("which `shards embed` made: a decoder reads these embeddings from the shards beside them. For that, use: dalle2-train init "
                      "embedded", " ".join((done.stdout + done.stderr).split()))
        self.assertIn('"unconditional": true', (self.dir / "first.json").read_text())
        shutil.rmtree(bare)
        text = ["sample", "--checkpoint", "decoder/model.pth", "--clip", self.trained / "clip/model.pth", "--prior", "prior/model.pth"]
        (self.dir / "texts.txt").write_text("a large red circle\na small blue ring\n")
        for out, batch in (("drawn", 2), ("again", 1)):
            done = run(*text, "--text", "@texts.txt", "--num-prior-samples", 3, "--batch-size", batch, "--out", out, cwd=self.dir, check=0)
            self.assertNotIn("warning", done.stderr)
        shape, values = harness.read_npy(self.dir / "drawn/samples.npy")
        self.assertEqual(shape, (2, 3, 16, 16))
        for a, b in zip(values, harness.read_npy(self.dir / "again/samples.npy")[1]):
            self.assertAlmostEqual(a, b, places=4)
        run(*text, "--text", "a large red circle", "--num", 3, "--prior-cond-scale", 1.0, "--out", "three", cwd=self.dir, check=0)
        self.assertEqual(harness.read_npy(self.dir / "three/samples.npy")[0], (3, 3, 16, 16))
        # The prior draws in as many steps as asked for, and with its live weights if its file has others.
        run(*text, "--text", "a large red circle", "--num", 3, "--prior-timesteps", 2, "--out", "steps", cwd=self.dir, check=0)
        self.assertNotEqual(*(harness.read_npy(self.dir / out / "samples.npy")[1] for out in ("steps", "three")))
        live = ["--text", "a large red circle", "--prior-no-ema", "--out", "live"]
        run(*text[:-1], "prior/checkpoint.pth", *live, cwd=self.dir, check=0)
        done = run(*text, *live, "--overwrite", cwd=self.dir, check=2)
        self.assertIn("--prior-no-ema: has no effect on prior/model.pth, which holds no averages", " ".join(done.stderr.split()))
        # The text stands under each picture of the sheet, in a line of 14 pixels; pictures are enlarged so that words fit.
        sheet = (self.dir / "three/sheet.png").read_bytes()
        self.assertEqual(struct.unpack(">II", sheet[16:24]), (2 * 130 + 2, 2 * (128 + 3 + 14 + 2) + 2))
        self.check_pictures_and_ways(text)
        self.check_messages_of_sample(text)
        self.check_identity_of_the_clip(text, prior)

    def check_identity_of_the_clip(self, text, prior):
        """A prior's files say of which CLIP its embeddings are, however the run got them; one of another CLIP is warned of."""
        embeddings = json.loads(json.dumps(prior))
        other = self.clip_config(self.dir, "other.json", "other", train={"epochs": 1}, data={"ground": [1, 2, 3]})
        run("--config", other, cwd=self.dir, check=0)
        prior["prior"]["clip"] = {"model": str(self.trained / "clip/checkpoint.pth")}
        prior["data"].update(text_url=None, meta_url=str(self.dir / "embedded"))
        prior["tracker"].update(data_path="captions", save={"save_to": "local", "save_latest_to": "captions.pth"})
        run("--config", harness.write_config(self.dir / "captions.json", prior), cwd=self.dir, check=0)
        run("convert", "prior/checkpoint.pth", "averaged.pth", "--ema", cwd=self.dir, check=0)
        identity = json.loads((self.dir / "embedded/embeddings.json").read_text())["clip_sha256"]
        self.assertEqual(harness.inspect("decoder/model.pth", self.dir)["clip_weights_sha256"]["value"], identity)
        for path in ("prior/model.pth", "prior/checkpoint.pth", "captions/model.pth", "averaged.pth"):
            with self.subTest(path):
                self.assertEqual(harness.inspect(path, self.dir)["clip_weights_sha256"]["value"], identity)
                drawn = [*text[:3], "--prior", path, "--text", "a large red circle", "--out", "said", "--overwrite"]
                said = f"--prior {path}: trained with the embeddings of another CLIP: its identity, a SHA-256, is {identity[:16]}, and that of --clip "
                self.assertNotIn("SHA-256", run(*drawn, *text[3:5], cwd=self.dir, check=0).stderr)
                found = run(*drawn, "--clip", "other/model.pth", cwd=self.dir, check=0).stderr
                self.assertIn(said, found)
                self.assertIn(said.replace(f"--prior {path}", "--checkpoint decoder/model.pth"), found)
        # Pictures embedded by one CLIP, and texts by another.
        run("shards", "embed", self.shards, "--clip", "other/model.pth", "--out", "mixed", cwd=self.dir, check=0)
        said = run("init", "mixed", "--out", "mixed_first.json", cwd=self.dir, check=0).stdout
        self.assertIn('the written config reads these pictures so: "ground": [1,2,3]\n', said)
        mixed = ["--config", harness.write_config(self.dir / "mixed.json", embeddings), "--set", "/data/image_url=mixed/img_emb", "--set",
                 "/tracker/data_path=mixed_prior", "--set", "/tracker/save/save_latest_to=mixed_prior/latest.pth", "--dry-run"]
        said = "/data/image_url: the embeddings are of another CLIP than those of /data/text_url"
        self.assertIn(said, run(*mixed, cwd=self.dir, check=0).stderr)
        self.assertNotIn(said, run(*mixed, "--set", "/data/text_url=mixed/text_emb", cwd=self.dir, check=0).stderr)
        # A run whose embeddings are another CLIP's by now says so once, and its files name the new one.
        manifest = self.dir / "embedded/embeddings.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "clip_sha256": "f" * 64}))
        embeddings["train"]["epochs"] = embeddings["train"].get("epochs", 1) + 1
        embeddings["tracker"]["log"] = {"log_type": "console", "auto_resume": True}
        done = run("--config", harness.write_config(self.dir / "again.json", embeddings), cwd=self.dir, check=0)
        self.assertEqual(done.stderr.count(f"its identity, a SHA-256, is {identity[:16]}, and that of this run's is ffffffffffffffff"), 1)
        self.assertEqual(harness.inspect("prior/model.pth", self.dir)["clip_weights_sha256"]["value"], "f" * 64)
        manifest.write_text("[")
        self.assertIn("embedded/embeddings.json: expected a JSON object", run(*mixed, cwd=self.dir, check=3).stderr)

    def check_pictures_and_ways(self, text):
        """Variations, ways between two pictures or texts, and text diffs are drawn from embeddings that can be computed here."""
        clip = text[:5]
        noise = [0.1 * (i % 11 - 5) for i in range(3 * 16 * 16)]

        def drawn(out, *arguments):
            run(*arguments, "--sampler", "dpmpp", "--timesteps", 4, "--out", out, cwd=self.dir, check=0)
            return harness.read_npy(self.dir / out / "samples.npy")

        def drawn_from(out, rows):
            """What the decoder draws from these embeddings, all from the same noise."""
            harness.write_npy(self.dir / f"{out}.npy", (len(rows), WIDTH), [value for row in rows for value in row])
            harness.write_npy(self.dir / f"{out}_noise.npy", (len(rows), 3, 16, 16), noise * len(rows))
            return drawn(out, *text[:3], "--image-embeds", f"{out}.npy", "--init-noise", f"{out}_noise.npy")

        def compare(name, rows, *arguments):
            shape, expected = drawn_from(name + "_by_rows", rows)
            found_shape, found = drawn(name, *clip, *arguments, "--init-noise", f"{name}_by_rows_noise.npy")
            self.assertEqual(found_shape, shape, name)
            self.assertLess(max(abs(x - y) for x, y in zip(found, expected)), 2e-3, name)

        # Two pictures with captions of our own; `shards embed` says what their embeddings are.
        captions = ["a red ring", "a blue ring"]
        for folder in ("own", "pictures"):
            (self.dir / folder).mkdir()
        with tarfile.open(self.shards / "000000.tar") as tar, tarfile.open(self.dir / "own/000000.tar", "w") as own:
            names = [name for name in tar.getnames() if name.endswith(".jpg")]
            for number, (name, caption) in enumerate(zip(names, captions)):
                (self.dir / f"pictures/{number}.jpg").write_bytes(tar.extractfile(name).read())
                (self.dir / f"{number}.txt").write_text(caption)
                own.add(self.dir / f"pictures/{number}.jpg", f"{number:06}.jpg")
                own.add(self.dir / f"{number}.txt", f"{number:06}.txt")
        run("shards", "embed", "own", "--clip", self.trained / "clip/model.pth", "--out", "own_embedded", cwd=self.dir, check=0)
        _, embeds = harness.read_npy(self.dir / "own_embedded/img_emb/000000.npy")
        _, texts = harness.read_npy(self.dir / "own_embedded/text_emb/000000.npy")

        def row(values, i):
            return list(values[i * WIDTH:(i + 1) * WIDTH])

        def distance(values, others):
            return max(abs(x - y) for x, y in zip(values, others))

        a, b = row(embeds, 0), row(embeds, 1)
        compare("variations", [a, a, b, b], "--image", "pictures", "--num", 2)
        compare("between", [slerp(a, b, i / 3) for i in range(4)], "--image", "pictures/0.jpg", "--to", "pictures/1.jpg", "--num", 4)
        difference = [y - x for x, y in zip(row(texts, 0), row(texts, 1))]
        length = sum(value ** 2 for value in difference) ** 0.5
        change = [value / length for value in difference]
        compare("changed", [slerp(a, change, 0.3 * i / 2) for i in range(3)], "--image", "pictures/0.jpg", "--from-text", captions[0],
                "--text", captions[1], "--theta", 0.3, "--num", 3)
        # Images of a way share their draws; variations have draws of their own.
        _, frames = drawn("same", *clip, "--image", "pictures/0.jpg", "--to", "pictures/0.jpg", "--num", 2)
        self.assertLess(distance(frames[:768], frames[768:]), 1e-4)
        _, frames = drawn("other", *clip, "--image", "pictures/0.jpg", "--num", 2)
        self.assertGreater(distance(frames[:768], frames[768:]), 1e-2)
        # A way between texts begins and ends at what the prior draws for them.
        shape, way = drawn("words", *text, "--text", "a large red circle", "--to", "a small blue ring", "--num", 3)
        self.assertEqual(shape, (3, 3, 16, 16))
        _, start = drawn("start", *text, "--text", "a large red circle")
        self.assertLess(distance(way, start), 2e-3)

    def check_messages_of_sample(self, text):
        harness.write_npy(self.dir / "six.npy", (6, 3, 16, 16), [0.5] * (6 * 768))
        harness.write_npy(self.dir / "small.npy", (1, 3, 16, 15), [0.5] * 720)
        harness.write_npy(self.dir / "dark.npy", (1, 3, 16, 16), [-0.5] * 768)

        def refused(code, expected, *arguments):
            for more in ([], ["--dry-run"]):
                done = run(*arguments, "--out", "refused", *more, cwd=self.dir, check=code)
                self.assertIn(expected, " ".join(done.stderr.split()), more)
                self.assertFalse((self.dir / "refused").exists())
        done = run(*text, "--text", "a ring", "--prior-timesteps", 3, "--out", "refused", "--dry-run", cwd=self.dir, check=0)
        self.assertRegex(done.stdout, r"CLIP .*: \d+ parameters\n.*prior prior/model.pth: \d+ parameters, 3 of 20 steps, guidance 1\n")
        refused(2, "prior/model.pth: --prior-timesteps: expected 2 to 20 (/prior/timesteps), got 21", *text, "--text", "a ring",
                "--prior-timesteps", 21)
        refused(3, "error: --init-noise none.npy: ", *text, "--text", "a ring", "--init-noise", "none.npy")
        picture = [*text[:5], "--image", "pictures/0.jpg"]
        refused(3, "none.safetensors", *text, "--text", "a ring", "--prior-lora", "none.safetensors")
        refused(2, "has the same embedding for both", *picture, "--from-text", "a ring", "--text", "a ring")
        refused(2, "--image gives 2, --to gives 6: expected as many, or one for all", *text[:5], "--image", "pictures", "--to",
                "six.npy")
        refused(3, "--image small.npy: expected pictures of 16 x 16 pixels or more", *text[:5], "--image", "small.npy")
        refused(3, "dark.npy: expected values from 0 to 1", *text[:5], "--image", "dark.npy")
        refused(3, "error: --to none.png: no such file", *picture, "--to", "none.png")
        refused(2, "--text @none.txt: none.txt: no such file", *text, "--text", "@none.txt")
        (self.dir / "blank.txt").write_text("a ring\n\na circle\n")
        refused(2, "--text @blank.txt: line 2 is empty", *text, "--text", "@blank.txt")
        refused(3, "expected a checkpoint of a clip, got one of a prior", *text[:3], "--text", "a ring", "--clip", "prior/model.pth",
                "--prior", "prior/model.pth")
        refused(2, "has 30 tokens, and --clip", *text, "--text", "a " * 30)
        run("convert", self.trained / "clip/model.pth", "damaged.safetensors", cwd=self.dir, check=0)
        content = bytearray((self.dir / "damaged.safetensors").read_bytes())
        content[-4:] = b"\x00\x00\xc0\x7f"  # NaN
        (self.dir / "damaged.safetensors").write_bytes(content)
        refused(3, ": the weights are not finite", *text[:3], "--text", "a ring", "--clip", "damaged.safetensors", "--prior",
                "prior/model.pth")
        run("convert", "prior/model.pth", "nan_prior.safetensors", cwd=self.dir, check=0)
        content = bytearray((self.dir / "nan_prior.safetensors").read_bytes())
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8:8 + length])
        begin = 8 + length + header["net.causal_transformer.norm.g"]["data_offsets"][0]
        content[begin:begin + 4] = b"\x00\x00\xc0\x7f"
        (self.dir / "nan_prior.safetensors").write_bytes(content)
        done = run(*text[:5], "--text", "a ring", "--prior", "nan_prior.safetensors", "--out", "not_finite", cwd=self.dir, check=4)
        self.assertIn("The weights of nan_prior.safetensors may be damaged or diverged.", " ".join(done.stderr.split()))
        narrow = self.clip_config(self.dir, "narrow.json", "narrow", clip={"embed_dim": 8}, train={"epochs": 1})
        run("--config", narrow, cwd=self.dir, check=0)
        refused(3, "--clip narrow/model.pth: expected embeddings of 16 values, as decoder/model.pth was trained with, got 8", *text[:3],
                "--clip", "narrow/model.pth", "--image", "pictures/0.jpg")
        refused(3, "expected embeddings of 8 values, as --clip narrow/model.pth makes, got a prior of 16", *text[:3], "--text", "a ring",
                "--clip", "narrow/model.pth", "--prior", "prior/model.pth")

    def content(self, folder):
        """Of all files of a folder, by their places in it."""
        folder = self.dir / folder
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def start_embedding(self, out, *more, shards=None, clip=None, env=None):
        return harness.start("shards", "embed", shards or self.shards, "--clip", clip or self.trained / "clip/model.pth", "--out", out, *more,
                             cwd=self.dir, env=env)

    def test_several_processes_share_the_shards(self):
        one = self.embed("--text-encodings", out="one")
        expected = self.content("one")
        self.assertEqual(len(expected), 4 * 16 + 1)  # tars, three arrays each, and what they were made with
        self.assertEqual(self.embed("--text-encodings", "--nproc-per-node", 3, out="three").stdout, one.stdout.replace("one/", "three/"))
        self.assertEqual(self.content("three"), expected)
        # As torchrun and srun start them: rank 0 speaks for all.
        port = harness.free_port()
        ranks = [self.start_embedding("started", "--text-encodings", env=harness.rank_variables(rank, 2, port)) for rank in (0, 1)]
        said = [process.communicate(timeout=120)[0] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [0, 0], said)
        self.assertIn("96 embeddings in 16 shards\n", said[0])
        self.assertRegex(said[1], r"\A\[clip\] warning: captions of more than 18 tokens are cut: [^\n]*\n\Z")  # and no progress
        self.assertEqual(self.content("started"), expected)

    def test_what_is_wrong_with_shards_that_are_shared(self):
        damaged = self.dir / "damaged"
        shutil.copytree(self.shards, damaged)
        (damaged / "000001.tar").write_bytes(b"no tar" * 1000)
        command = ["shards", "embed", damaged, "--clip", self.trained / "clip/model.pth", "--nproc-per-node", 2, "--out"]
        done = run(*command, "made", cwd=self.dir, check=0)
        self.assertIn("90 embeddings in 15 shards, 1 shard skipped\n", done.stdout)
        self.assertIn("000001.tar", done.stderr)
        for path in damaged.glob("*.tar"):
            path.write_bytes(b"no tar" * 1000)
        self.assertIn(".tar", run(*command, "none", cwd=self.dir, check=3).stderr)
        self.assertIn("000000.tar, which is one of the shards to read", " ".join(run(*command, damaged, cwd=self.dir, check=2).stderr.split()))
        self.assertIn("SHARDS nowhere: there is no such folder", run("shards", "embed", "nowhere", *command[3:-3], "--out", "no", cwd=self.dir, check=2).stderr)
        # Ranks that would make different things.
        run("--config", self.clip_config(self.dir, "other.json", "other", train={"epochs": 1}), cwd=self.dir, check=0)
        port = harness.free_port()
        clips = [self.trained / "clip/model.pth", self.dir / "other/model.pth"]
        ranks = [self.start_embedding("mixed", clip=clip, env=harness.rank_variables(rank, 2, port)) for rank, clip in enumerate(clips)]
        said = [process.communicate(timeout=120)[0] for process in ranks]
        self.assertEqual([process.returncode for process in ranks], [2, 2], said)
        self.assertIn("/clip_sha256: rank 0 has", " ".join(said[0].split()))
        self.assertFalse((self.dir / "mixed").exists())

    def test_a_stop_or_a_loss_of_one_process_leaves_no_shards(self):
        with Server(self.shards) as server:
            last = sorted(path.stem for path in self.shards.glob("[0-9]*.tar"))[-1]
            shards = f"{server.url}/{{000000..{last}}}.tar"
            stalled = threading.Event()

            def stall(handler, name, number):
                if name != f"{last}.tar":
                    return False
                stalled.set()
                return handler.stall()

            self.assertEqual(self.start_embedding("whole", shards=shards).wait(timeout=120), 0)
            expected = self.content("whole")
            server.mistreat = stall
            for ending, code, text in ((signal.SIGTERM, 75, "stopped by a signal; no shard was written"),
                                       (signal.SIGKILL, 6, "rank 1 was killed by signal 9")):
                stalled.clear()
                process = self.start_embedding("cut", "--nproc-per-node", 2, shards=shards)
                # Rank 1 waits within its last shard, and rank 0 is through with its own.
                part = self.dir / "cut/shards.part"
                harness.wait_for(process, lambda: stalled.is_set() and len(list(part.glob("*.tar"))) == 15)
                os.kill(harness.ranks_of(process)[1], ending)
                said = self.end_of(process, code)
                self.assertIn(text, " ".join(said.split()))
                self.assertFalse(list((self.dir / "cut").glob("*.tar")))
            server.mistreat = lambda handler, name, number: False
            process = self.start_embedding("cut", "--nproc-per-node", 2, shards=shards)
            self.end_of(process, 0)
            self.assertEqual(self.content("cut"), expected)

    def test_weights_of_others_begin_a_run(self):
        for name in ("begin.pt", "begin.safetensors"):
            run("convert", self.trained / "clip/model.pth", name, "--open-clip", cwd=self.dir, check=0)
        load = {"load_from": "local", "file_path": "begin.pt", "only_auto_resume": False}
        config = self.clip_config(self.dir, train={"epochs": 1, "lr": 1e-9}, tracker={"load": load})
        self.assertIn("weights only", run("--config", config, cwd=self.dir, check=0).stdout)
        # Weights and vocabulary are those of the run that made the file: so are its last figures.
        for key in ("Validation Loss", "image_to_text_R@1"):
            found, expected = ([record[key] for record in harness.records(folder / "clip") if key in record]
                               for folder in (self.dir, self.trained))
            self.assertAlmostEqual(found[-1], expected[-1], places=4, msg=key)
        # Tensors alone: the vocabulary that belongs to them is not known.
        load["file_path"] = "begin.safetensors"
        done = run("--config", self.clip_config(self.dir, "other.json", "other", train={"epochs": 1}, tracker={"load": load}), cwd=self.dir,
                   check=2)
        self.assertIn("/clip/tokenizer/train: the run begins with the weights of a file", done.stderr)

    def test_wrong_input_is_named(self):
        done = run("--config", self.clip_config(self.dir, clip={"tokenizer": {"train": 30000}}), cwd=self.dir, check=2)
        self.assertIn("/clip/tokenizer/train: expected at most", done.stderr)
        self.assertEqual(harness.left_by_refused_start(self.dir / "clip"), [])
        sizes = {"layers": 1, "width": 16, "head_width": 8, "patch_size": 4, "image_size": 32}
        done = run("--config", self.clip_config(self.dir, clip={"vision_cfg": sizes}), cwd=self.dir, check=3)
        self.assertIn("expected pictures of 32 x 32 pixels", done.stderr)
        resnet = {"layers": [1, 1, 1, 1], "width": 4, "head_width": 8, "image_size": 64}
        done = run("--config", self.clip_config(self.dir, clip={"vision_cfg": resnet}), "--nproc-per-node", 2, cwd=self.dir, check=2)
        self.assertIn("/clip/vision_cfg/layers: a ResNet is trained by one process, got 2", done.stderr)
        bare = self.dir / "bare"
        bare.mkdir()
        with tarfile.open(self.shards / "000000.tar") as tar, tarfile.open(bare / "000000.tar", "w") as out:
            for member in tar.getmembers():
                if not member.name.endswith(".txt"):
                    out.addfile(member, tar.extractfile(member))
        done = run("shards", "embed", bare, "--clip", self.trained / "clip/model.pth", "--out", "none", cwd=self.dir, check=3)
        self.assertIn("none: expected at least one embedding, got none: 6 samples of 1 shard left out If they have no captions, --no-captions "
                      "embeds pictures alone.", " ".join(done.stderr.split()))
        self.assertFalse((self.dir / "none/000000.tar").exists())
        embed = ["shards", "embed", bare, "--clip", self.trained / "clip/model.pth", "--no-captions", "--out"]
        self.assertIn('a prior "image_url": "pictures/img_emb"\n', run(*embed, "pictures", cwd=self.dir, check=0).stdout)
        self.assertEqual(harness.read_npy(self.dir / "pictures/img_emb/000000.npy")[0], (6, WIDTH))
        self.assertFalse((self.dir / "pictures/text_emb").exists())
        self.assertIn("--text-encodings: not with --no-captions", run(*embed, "both", "--text-encodings", cwd=self.dir, check=2).stderr)
        enlarging = {"Resize": {"size": 32}, "CenterCrop": {"size": 32}, "ToTensor": True}
        large = self.clip_config(self.dir, "large.json", "large", clip={"vision_cfg": sizes}, data={"preprocessing": enlarging}, train={"epochs": 1})
        run("--config", large, cwd=self.dir, check=0)
        done = run("shards", "embed", self.shards, "--clip", "large/model.pth", "--out", "enlarged", cwd=self.dir, check=0)
        self.assertIn("has 16 x 16 pixels, and the CLIP sees 32 x 32: smaller pictures are enlarged", " ".join((done.stderr + done.stdout).split()))


if __name__ == "__main__":
    main()
