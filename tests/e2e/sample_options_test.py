# SPDX-License-Identifier: MIT
"""`sample`: options that would do nothing are refused, a used folder only with --overwrite, adapters and steps a unet."""
import json
import struct

import harness
from harness import EndToEnd, read_npy, run, tiny_config, write_config, write_npy


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class SampleOptions(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_npy(cls.base / "two.npy", (2, 32), [0.1 * (i % 7 - 3) for i in range(64)])
        write_npy(cls.base / "small.npy", (2, 3, 8, 8), [0.5] * 384)
        write_npy(cls.base / "bright.npy", (2, 3, 8, 8), [0.5, 255] * 192)
        write_npy(cls.base / "mask.npy", (2, 1, 4, 4), [1.0] * 32)
        cls.trained("conditional", {})
        free = tiny_config(cls.shards, "free")["decoder"]
        free["unets"][0].pop("image_embed_dim")
        cls.trained("free", {**free, "unconditional": True})
        cls.trained("cascade", harness.CASCADE)

    @classmethod
    def trained(cls, name, decoder):
        config = tiny_config(cls.shards, name, decoder=decoder, train={"n_sample_images": 0, "epoch_samples": 8})
        if config["decoder"].get("unconditional"):
            del config["data"]["img_embeddings_url"]
        run("--config", write_config(cls.base / f"{name}.json", config), cwd=cls.base, check=0)

    def sample(self, checkpoint, *arguments, check=0, out="x"):
        return run("sample", "--checkpoint", self.base / checkpoint, *arguments, "--out", self.dir / out, cwd=self.base,
                   check=check)

    def refuse(self, checkpoint, *arguments, expect, code=2, out="x"):
        for more in ([], ["--dry-run"]):
            done = self.sample(checkpoint, *arguments, *more, check=code, out=out)
            for part in expect:
                self.assertIn(part, done.stderr, more)
            self.assertFalse(list(self.dir.glob("x/*")), "a refused command must not leave pictures")

    def test_what_would_do_nothing_is_refused_with_the_reason(self):
        embeds = ["--image-embeds", "two.npy"]
        self.refuse("conditional/model.pth", *embeds, "--no-ema",
                    expect=["--no-ema: has no effect on ", "conditional/model.pth", "holds no averages", "checkpoint.pth"])
        self.sample("conditional/checkpoint.pth", *embeds, "--no-ema", "--timesteps", 1)

    def test_what_does_not_fit_is_named_with_its_option_and_file(self):
        (self.dir / "file").write_text("")
        write_npy(self.base / "narrow.npy", (2, 31), [0.5] * 62)
        embeds = ["--image-embeds", "two.npy"]
        self.refuse("conditional/model.pth", "--image-embeds", "narrow.npy", code=3,
                    expect=["--image-embeds narrow.npy: expected embeddings of 32 values", "conditional/model.pth", "got 31"])
        unread = (("--init-noise", "none.npy"), ("--init-noise", "file"), ("--inpaint-image", "none.png", "--inpaint-mask", "mask.npy"),
                  ("--inpaint-mask", "none", "--inpaint-image", "small.npy"))
        for option, path, *more in unread:
            path = self.dir / path
            self.refuse("conditional/model.pth", *embeds, option, path, *more, code=3, expect=[f"error: {option} {path}: "])
        self.refuse("conditional/model.pth", "--image-embeds", "none.npy", code=3, expect=["error: --image-embeds none.npy: "])
        self.refuse("cascade/model.pth", "--start-unet", 2, "--image", "none.png", code=3, expect=["error: --image none.png: "])
        self.refuse("cascade/model.pth", "--start-unet", 2, "--image", "bright.npy", code=3,
                    expect=["error: --image bright.npy: expected values from 0 to 1, got 0.5 to 255"])
        self.refuse("conditional/model.pth", *embeds, "--text-encodings", "none.npy",
                    expect=["--text-encodings", "needs a model that takes text encodings"])
        self.refuse("conditional/model.pth", *embeds, out="file/x",
                    expect=["/file/x: '", "/file' is a file; expected a folder"])
        run("sample", "--checkpoint", "conditional/model.pth", *embeds, "--out", "", cwd=self.base, check=2)
        for value, told in ((1 / 255, "keeps nothing, so that the whole picture is drawn again"), (0.6, "keeps the whole picture")):
            write_npy(self.base / "even.npy", (1, 3, 8, 8), [value] * 192)
            done = run("sample", "--checkpoint", "conditional/model.pth", *embeds, "--inpaint-image", "small.npy", "--inpaint-mask",
                       "even.npy", "--out", "even", "--overwrite", cwd=self.base, check=0)
            self.assertIn(told, " ".join(done.stderr.split()))
        self.refuse("conditional/model.pth", *embeds, "--inpaint-image", "small.npy", "--inpaint-mask", "mask.npy", code=3,
                    expect=["--inpaint-mask: expected shape [2, 8, 8], got [2, 4, 4]"])
        self.refuse("cascade/model.pth", *embeds, "--timesteps", 2, 3, 4,
                    expect=["--timesteps: expected one value, or one for each of the 2 unets", "cascade/model.pth", "got 3"])
        self.refuse("cascade/model.pth", *embeds, "--cond-scale", 2, 3, 4,
                    expect=["--cond-scale: expected one value, or one for each of the 2 unets", "got 3"])
        self.refuse("cascade/model.pth", *embeds, "--start-unet", 3, "--image", "small.npy",
                    expect=["--start-unet: expected 1 to 2, the unets of ", "got 3"])
        self.refuse("cascade/model.pth", *embeds, "--stop-unet", 3, expect=["--stop-unet: expected 1 to 2", "got 3"])
        self.refuse("conditional/model.pth", *embeds, "--cond-scale", 2, 3,
                    expect=["--cond-scale: expected one value for ", "conditional/model.pth, got 2"])

    def test_a_guidance_is_blamed_only_where_there_is_one(self):
        file = self.dir / "nan.safetensors"
        run("convert", "conditional/model.pth", file, cwd=self.base, check=0)
        content = bytearray(file.read_bytes())
        begin = 8 + int.from_bytes(content[:8], "little")
        place = begin + json.loads(content[8:begin])["unets.0.to_out.bias"]["data_offsets"][0]
        content[place:place + 4] = b"\x00\x00\xc0\x7f"  # NaN
        file.write_bytes(content)
        source = {"unet_numbers": [1], "default_cond_scale": [2], "load_model_from": {"path": str(file)}}
        pipeline = write_config(self.dir / "pipeline.json", {"decoder": {"unet_sources": [source]}})
        for given, told in ((["--checkpoint", file], "diverged."),
                            (["--checkpoint", file, "--cond-scale", 1], "diverged."),
                            (["--checkpoint", file, "--cond-scale", 2], "diverged, or --cond-scale is far too large."),
                            (["--pipeline", pipeline], f"diverged, or default_cond_scale ({pipeline}) is far too large.")):
            done = run("sample", *given, "--image-embeds", "two.npy", "--timesteps", 1, "--out", self.dir / "x", cwd=self.base, check=4)
            self.assertIn(f"The weights of {file} may be damaged or {told}", " ".join(done.stderr.split()))

    def test_neither_the_batch_nor_the_number_of_pictures_changes_one(self):
        """Draws hang on the seed and the picture's row."""
        for timesteps in ([], ["--timesteps", 2]):
            arrays = []
            for number, (num, batch) in enumerate([(5, 5), (5, 2), (2, 1)]):
                out = f"{len(timesteps)}.{number}"
                self.sample("free/model.pth", "--num", num, "--batch-size", batch, "--seed", 7, *timesteps, out=out)
                arrays.append(read_npy(self.dir / out / "samples.npy"))
            picture = len(arrays[0][1]) // 5
            self.assertGreater(len({tuple(arrays[0][1][i * picture:(i + 1) * picture]) for i in range(5)}), 4, "all the same")
            for shape, values in arrays[1:]:
                # Of another batch size the last bit of a sum may differ.
                for a, b in zip(values, arrays[0][1]):
                    self.assertAlmostEqual(a, b, delta=1e-3)
                self.assertEqual(len(values), shape[0] * picture)

    def test_half_precision_draws_nearly_the_same_pictures(self):
        drawn = {}
        for precision in ("no", "bf16"):
            self.sample("conditional/model.pth", "--image-embeds", "two.npy", "--cond-scale", 2, "--timesteps", 3, "--precision", precision,
                        out=precision)
            drawn[precision] = read_npy(self.dir / precision / "samples.npy")[1]
        differences = [abs(a - b) for a, b in zip(drawn["no"], drawn["bf16"])]
        self.assertGreater(max(differences), 1e-6, "bf16 was not used")
        self.assertLess(sum(differences) / len(differences), 0.02)
        self.refuse("conditional/model.pth", "--image-embeds", "two.npy", "--precision", "half", expect=["--precision", "bf16"])

    def test_a_sheet_shows_all_pictures_and_is_none_of_them(self):
        self.sample("free/model.pth", "--num", 3, "--timesteps", 1)
        sheet = (self.dir / "x/sheet.png").read_bytes()
        self.assertEqual(struct.unpack(">II", sheet[16:24]), (2 * 18 + 2, 2 * 18 + 2))  # two rows of pictures of 16, 2 between
        cascade = ["cascade/model.pth", "--image-embeds", "two.npy", "--timesteps", 1]
        self.sample(*cascade, "--stop-unet", 1, out="small")
        self.sample(*cascade, "--start-unet", 2, "--image", self.dir / "small", out="large")
        self.assertEqual(read_npy(self.dir / "large/samples.npy")[0][0], 2)
        self.sample("free/model.pth", "--num", 1, "--timesteps", 1, out="alone")
        self.assertEqual(names(self.dir / "alone"), ["0000.png", "samples.npy"])

    def test_a_used_folder_is_drawn_into_only_if_asked_and_nothing_is_removed(self):
        folder = self.dir / "x"
        folder.mkdir()
        for name in (".hidden", "0000.png.part"):  # neither is output
            (folder / name).write_text("")
        self.sample("free/model.pth", "--num", 3, "--timesteps", 1)
        (folder / "0001.png").write_text("mine")
        for more in ([], ["--dry-run"]):
            done = self.sample("free/model.pth", "--num", 2, "--timesteps", 1, *more, check=2)
            told = " ".join(done.stderr.split())
            self.assertIn("expected a new or empty folder, but it holds 0000.png to 0002.png, samples.npy, sheet.png", told)
            self.assertIn("--overwrite", told)
        self.assertEqual((folder / "0001.png").read_text(), "mine")
        self.sample("free/model.pth", "--num", 2, "--timesteps", 1, "--overwrite")
        self.assertTrue((folder / "0001.png").read_bytes().startswith(b"\x89PNG"))
        self.assertEqual(read_npy(folder / "samples.npy")[0][0], 2)
        self.assertLessEqual({".hidden", "0000.png", "0001.png", "0002.png", "samples.npy", "sheet.png"}, set(names(folder)))

    def test_timesteps_are_one_number_or_one_for_each_unet(self):
        embeds = ["--image-embeds", "two.npy"]

        def drawn(out, *steps):
            self.sample("cascade/model.pth", *embeds, "--timesteps", *steps, "--overwrite", out=out)
            return read_npy(self.dir / out / "samples.npy")[1]

        self.assertEqual(drawn("one", 2), drawn("same", 2, 2))
        self.assertNotEqual(drawn("one", 2), drawn("other", 2, 3))
        self.refuse("cascade/model.pth", *embeds, "--timesteps", 2, 5000,
                    expect=["cascade/model.pth: --timesteps of unet 2: expected 1 to ", "got 5000"])

    def test_adapters_are_drawn_with_as_if_they_were_merged(self):
        config = self.config("lora.json", self.dir / "lora", train={
            "n_sample_images": 0, "epoch_samples": 32, "lora": {"rank": 2, "alpha": 8, "train_bias": True}, "lr": 1e-2},
            tracker={"load": {"load_from": "local", "file_path": str(self.base / "conditional/model.pth")}})
        run("--config", config, cwd=self.base, check=0)
        file, base = self.dir / "lora" / "lora.safetensors", "conditional/model.pth"

        def drawn(out, checkpoint, *arguments):
            self.sample(checkpoint, "--image-embeds", "two.npy", "--timesteps", 3, "--overwrite", *arguments, out=out)
            return read_npy(self.dir / out / "samples.npy")[1]

        def merged(name, *arguments):
            run("convert", self.base / base, self.dir / name, *arguments, cwd=self.dir, check=0)
            return drawn(f"of-{name}", self.dir / name)

        plain, whole = drawn("plain", base), drawn("whole", base, "--lora", file)
        self.assertNotEqual(plain, whole)
        self.assertEqual(whole, merged("whole.pth", "--lora", file))
        half = drawn("half", base, "--lora", file, "--lora-scale", 0.5)
        self.assertEqual(half, merged("half.pth", "--lora", file, "--lora-scale", 0.5))
        self.assertNotIn(half, (plain, whole))
        self.assertEqual(plain, drawn("none", base, "--lora", file, "--lora-scale", 0))
        self.assertEqual(drawn("twice", base, "--lora", file, "--lora", file, "--lora-scale", 0.5, "--lora-scale", 0),
                         half)
        # Those that a checkpoint holds itself: their scale, and not a second file.
        own = self.dir / "lora" / "checkpoint.pth"
        run("convert", own, self.dir / "own.pth", "--merge-lora", "--ema", "--lora-scale", 0.5, cwd=self.dir, check=0)
        self.assertEqual(drawn("own", own, "--lora-scale", 0.5), drawn("of-own", self.dir / "own.pth"))
        self.assertNotEqual(drawn("own", own, "--lora-scale", 0.5), drawn("own-whole", own))
        self.refuse(own, "--image-embeds", "two.npy", "--lora", file, code=3, expect=["has its own adapters", "--merge-lora"])


if __name__ == "__main__":
    harness.main()
