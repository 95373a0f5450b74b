# SPDX-License-Identifier: MIT
"""`init` writes a config that runs as it stands, for each kind of data, and answers wrong folders with what to do."""
import json
import re
import shutil
import tarfile

from harness import EndToEnd, demo_shard_count, main, run, without_comments, write_npy, write_white
from prior_data import make_embeddings


class Init(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        make_embeddings(cls.base)

    def init(self, *arguments, check=0):
        done = run("init", *arguments, cwd=self.dir, check=check)
        return done.stdout if check == 0 else " ".join(done.stderr.split())

    def dry_run(self, name, *arguments):
        return run("--config", name, "--dry-run", *arguments, cwd=self.dir, check=0).stdout

    def read(self, name):
        return json.loads(without_comments((self.dir / name).read_text()))

    def test_a_decoder_is_conditioned_on_the_embeddings_that_lie_there(self):
        shown = self.init(self.shards)
        self.assertIn("image embeddings of width 32 in ", shown)
        self.assertIn("written: decoder.json, a first config of a decoder", shown)
        config = self.read("decoder.json")
        self.assertEqual(config["decoder"]["image_size"], 16)
        self.assertEqual(config["data"]["end_shard"], demo_shard_count(self.shards) - 1)
        self.assertIs(config["decoder"]["unconditional"], False)
        self.assertEqual(config["decoder"]["unets"][0]["image_embed_dim"], 32)

    def test_the_first_config_trains_and_resumes(self):
        (self.dir / "plain").mkdir()
        for tar in self.shards.glob("*.tar"):
            shutil.copy(tar, self.dir / "plain" / tar.name)
        self.init("plain", "--out", "first.json", "--nproc-per-node", 2)
        self.assertIs(self.read("first.json")["decoder"]["unconditional"], True)
        self.dry_run("first.json", "--nproc-per-node", 2)
        smaller = [f"--set={each}" for each in ("/train/epochs=1", "/train/epoch_samples=96", "/train/device=cpu", "/decoder/unets/0/dim=8",
                                                "/decoder/sample_timesteps=[2]")]
        run("--config", "first.json", *smaller, cwd=self.dir, check=0)
        self.assertTrue((self.dir / "runs/first/latest.pth").exists())
        done = run("--config", "first.json", *smaller, "--set=/train/epochs=2", cwd=self.dir, check=0)
        self.assertIn("runs/first", done.stdout + done.stderr)

    def test_a_prior_and_a_vae(self):
        shown = self.init(self.base, "--kind", "prior")
        self.assertIn("60 pairs of image and text embeddings of width 8", shown)
        self.assertIn("samples per epoch: 48", self.dry_run("prior.json"))
        shown = self.init(self.shards, "--kind", "vae", "--image-size", 16)
        self.assertIn("pictures in ", shown)
        self.assertEqual(self.read("vae.json")["data"]["image_size"], 16)
        self.assertIn("steps: 1,900", self.dry_run("vae.json"))

    def pictures(self, name):
        """A folder of pictures with captions, from the demo's shards."""
        folder = self.dir / name
        for tar in sorted(self.shards.glob("*.tar")):
            with tarfile.open(tar) as members:
                members.extractall(folder, members=[each for each in members if not each.name.endswith(".json")], filter="data")
        return folder

    def test_a_folder_of_pictures_trains_without_packing(self):
        folder = self.pictures("mine")
        shown = self.init("mine")
        self.assertIn("a first config of a decoder", shown)
        self.assertEqual(self.read("decoder.json")["data"]["folder"], "mine")
        smaller = [f"--set={each}" for each in ("/train/device=cpu", "/train/epoch_samples=96", "/decoder/unets/0/dim=8",
                                                "/decoder/sample_timesteps=[2]", "/data/lanes=1")]
        self.assertIn("train: ", self.dry_run("decoder.json"))
        run("--config", "decoder.json", *smaller, "--set=/train/epochs=1", cwd=self.dir, check=0)
        # Other pictures are another set: the run that began with the earlier ones says so.
        some = next(path for path in folder.rglob("*") if path.suffix in (".png", ".jpg", ".webp"))
        some.rename(some.with_stem("renamed"))
        done = run("--config", "decoder.json", *smaller, "--set=/train/epochs=2", cwd=self.dir, check=2)
        self.assertIn("the names of the 96 pictures have changed since the checkpoint was made", done.stderr)
        next(path for path in folder.rglob("*") if path.suffix in (".png", ".jpg", ".webp")).unlink()
        done = run("--config", "decoder.json", *smaller, "--set=/train/epochs=2", cwd=self.dir, check=2)
        self.assertIn("a data set of 96 pictures, now there are 95 pictures", done.stderr)

    def test_one_tiny_picture_does_not_decide_the_size(self):
        write_white(self.dir / "mine", 40, 70)
        write_white(self.dir / "mine", 1, 20)
        said = "found: 1 of 40 pictures is smaller than the run's 32 px: the run enlarges it. Remove it, or choose another size with --image-size"
        shown = self.init("mine")
        self.assertIn("40 pictures; 40 pictures looked at: 40 usable, 0 with a caption; shortest side 20 px", shown)
        self.assertIn(said, shown)
        self.assertEqual(self.read("decoder.json")["decoder"]["image_size"], 32)
        self.dry_run("decoder.json")
        smaller = [f"--set={each}" for each in ("/train/epochs=1", "/train/epoch_samples=32", "/train/device=cpu", "/decoder/unets/0/dim=8",
                                                "/decoder/sample_timesteps=[2]",
                                                "/data/splits={\"train\": 0.9, \"val\": 0.05, \"test\": 0.05}")]
        self.assertIn("[train] done: 1 epoch, 32 samples", run("--config", "decoder.json", *smaller, cwd=self.dir, check=0).stdout)
        self.assertNotIn("smaller than", self.init("mine", "--image-size", 16, "--overwrite"))
        # From four small pictures on, the size is theirs.
        write_white(self.dir / "mine", 5, 20)
        self.assertNotIn("smaller than", self.init("mine", "--overwrite"))
        self.assertEqual(self.read("decoder.json")["decoder"]["image_size"], 16)
        for number in range(40):
            (self.dir / f"mine/{number:02}.png").write_bytes(b"no picture")
        self.assertRegex(self.init("mine", "--overwrite", check=3), r"mine: no usable picture in the first 40 pictures: mine/\d\d.png: ")

    def test_each_kind_gives_a_config_that_a_strict_dry_run_takes_without_a_warning(self):
        for kind, data in (("decoder", self.shards), ("clip", self.shards), ("vae", self.shards), ("prior", self.base)):
            for more in ([], ["--minutes", 0.1]):
                with self.subTest(kind, more=more):
                    shown = self.init(data, "--kind", kind, "--overwrite", *more)
                    self.assertRegex(shown, r"the run: [0-9,]+ updates? of [0-9,]+ ")
                    done = run("--config", f"{kind}.json", "--strict", "--dry-run", cwd=self.dir, check=0)
                    self.assertEqual(done.stderr, "")
                    updates = int(re.search(r"the run: ([0-9,]+) update", shown)[1].replace(",", ""))
                    self.assertEqual(int(re.findall(r"steps: (?:.*, )?([0-9,]+)(?: in|$)", done.stdout, re.M)[0].replace(",", "")), updates)
                    train = self.read(f"{kind}.json")["train"]
                    self.assertEqual(train["cosine_decay_max_steps"], updates)
                    if kind != "clip":
                        self.assertEqual((train["ema_update_every"], train["ema_update_after_step"]), (1, 0))
                    self.assertFalse((self.dir / f"{kind}.json.trial").exists())

    def test_few_short_captions_make_a_vocabulary_that_a_clip_takes(self):
        for picture in write_white(self.dir / "mine", 36, 40).glob("*.png"):
            picture.with_suffix(".txt").write_text("ab")
        self.init("mine", "--kind", "clip")
        self.assertEqual(self.read("clip.json")["clip"]["tokenizer"]["train"], 515)
        run("--config", "clip.json", "--set=/train/epochs=1", cwd=self.dir, check=0)

    def test_folders_with_braces_in_their_names(self):
        for name in ("br{}ce", "{}", "a{{}}b", "x{0..3}", "}{", "{a} b"):
            with self.subTest(name):
                shutil.copytree(self.shards, self.dir / name, ignore=shutil.ignore_patterns("*_emb*"))
                self.init(name, "--out", "odd.json", "--overwrite")
                self.assertIn("train: ", self.dry_run("odd.json"))

    def test_pictures_that_are_not_usable_are_named(self):
        write_white(self.dir / "mine", 30, 40)
        (self.dir / "mine/07.png").write_bytes(b"")
        (self.dir / "mine/11.png").write_text("<html>")
        shown = self.init("mine")
        self.assertIn("28 usable", shown)
        self.assertRegex(shown, r"not usable, or not in all:\n +mine/07.png: .*\n +mine/11.png: ")
        self.assertIn("28 pictures looked at, 26 usable", self.init("mine", "--kind", "vae"))

    def test_a_clip_needs_captions(self):
        self.init(self.shards, "--kind", "clip")
        self.assertEqual(self.read("clip.json")["clip"]["vision_cfg"]["image_size"], 16)
        # Its validation loss does not say which state finds the most pairs.
        self.assertNotIn("save_best_to", self.read("clip.json")["tracker"]["save"])
        folder = self.pictures("bare")
        for text in folder.rglob("*.txt"):
            text.unlink()
        self.assertIn("no picture has a caption", self.init("bare", "--kind", "clip", "--overwrite", check=3))

    def test_captions_of_other_programs_are_read_or_told(self):
        folder = self.pictures("mine")
        texts = sorted(folder.rglob("*.txt"))
        texts[0].write_bytes("un café".encode("utf-16"))
        texts[1].write_bytes("un café".encode("latin-1"))
        texts[2].write_bytes(b"\xef\xbb\xbf \n")
        texts[3].write_text("a frog\nune grenouille\n")
        texts[4].rename(texts[4].with_suffix(".caption"))
        texts[5].rename(texts[5].with_suffix(".tags"))
        self.assertIn("96 usable, 94 with a caption", self.init("mine", "--kind", "clip"))
        done = run("--config", "clip.json", "--dry-run", cwd=self.dir, check=0)
        self.assertEqual(done.stderr.count(f"no {texts[5].name} beside it"), 1)
        self.assertEqual(sum(int(count) for count in re.findall(r"^\w+: (\d+) samples in ", done.stdout, re.M)), 94)

    def test_an_encoding_of_captions_is_named_once_and_holds_for_the_run(self):
        folder = self.pictures("mine")
        for text in folder.rglob("*.txt"):
            text.write_bytes("\u4e38\u3044\u7d75\u306e\u8aac\u660e ".encode("shift_jis"))
        self.assertRegex(self.init("mine", "--kind", "clip", check=3),
                         "learns from pairs; 96 captions cannot be read: .*: its caption is neither UTF-8 nor windows-1252: caption_encoding names")
        self.assertIn("96 usable, 96 with a caption", self.init("mine", "--kind", "clip", "--caption-encoding", "shift_jis"))
        self.assertEqual(self.read("clip.json")["data"]["caption_encoding"], "shift_jis")
        self.assertNotIn("no caption", run("shards", "check", "mine", "--caption-encoding", "shift_jis", cwd=self.dir, check=0).stdout)

    def test_what_a_folder_holds_decides_the_kind(self):
        (self.dir / "vectors").mkdir()
        make_embeddings(self.dir / "vectors")
        self.assertIn("a first config of a prior", self.init("vectors"))
        folder = self.pictures("with_a_vector")
        write_npy(folder / "samples.npy", (3, 4), [1.0] * 12)
        self.assertIn("a first config of a decoder", self.init("with_a_vector"))

    def test_wrong_folders_and_names(self):
        self.assertIn("expected a folder of shards, embeddings or pictures, relative to", self.init("absent", check=2))
        (self.dir / "empty").mkdir()
        self.assertIn("found no shard (.tar), embedding (.npy) or picture (.jpg, .png, .webp) in the folder", self.init("empty", check=3))
        self.init(self.shards)
        before = (self.dir / "decoder.json").read_text()
        (self.dir / "decoder.json").write_text(before + "// mine\n")
        self.assertIn("--out decoder.json: the file exists", self.init(self.shards, check=2))
        self.assertTrue((self.dir / "decoder.json").read_text().endswith("// mine\n"))
        self.init(self.shards, "--overwrite")
        self.assertEqual((self.dir / "decoder.json").read_text(), before)
        self.assertIn("expected the name of a config, such as decoder.json, got x.tar", self.init(self.shards, "--out", "x.tar", "--overwrite", check=2))
        text = self.init(self.shards, "--out", "x.json", "--nproc-per-node", 900, check=2)
        self.assertIn("shards are too few for 900 processes", text)
        self.assertIn("shards make --per-shard", text)
        self.assertFalse((self.dir / "x.json").exists())

    def test_shards_that_are_not_numbered_alike(self):
        for name in ("a.tar", "0001.tar"):
            (self.dir / "odd").mkdir(exist_ok=True)
            shutil.copy(next(self.shards.glob("*.tar")), self.dir / "odd" / name)
        self.assertIn("are not numbered in the same way", self.init("odd", check=2))

    def test_embeddings_of_two_widths(self):
        for name, width in (("images", 4), ("texts", 6)):
            (self.dir / "pairs" / name).mkdir(parents=True)
            write_npy(self.dir / "pairs" / name / "0.npy", (3, width), [1.0] * (3 * width))
        self.assertIn("a prior needs pairs of one width", self.init("pairs", check=3))


if __name__ == "__main__":
    main()
