# SPDX-License-Identifier: MIT
"""Pictures of all sorts, from the file to a run: grey and transparent ones, 16 bits, and kinds that are not read."""
import json
import shutil

import harness
from harness import EndToEnd, main, png, run


def kind_of_png(path):
    """Bits of a channel and the colour type."""
    return tuple(path.read_bytes()[24:26])


VAE = {"dim": 16, "layers": 1, "codebook_size": 16, "use_vgg_and_gan": False}


class Pictures(EndToEnd):
    def make(self, folder, channels, colour_type, depth=8, count=40, largest=255):
        (self.dir / folder).mkdir()
        for i in range(count):
            rows = [[(7 * i + 31 * x + 13 * y) % (largest + 1) for x in range(16 * channels)] for y in range(16)]
            rows[0][0] = largest
            (self.dir / folder / f"{i:02}.png").write_bytes(png(rows, depth, colour_type))

    def of_folder(self, folder, channels=3, **data):
        config = harness.tiny_config(self.shards, "out", decoder={"channels": channels, "unconditional": True})
        config["decoder"]["unets"][0].pop("image_embed_dim")
        for key in ("webdataset_base_url", "img_embeddings_url", "end_shard"):
            config["data"].pop(key)
        config["data"].update(folder=folder, folder_order="mixed", **data)
        return harness.write_config(self.dir / "config.json", config)

    def vae(self, folder, channels, **data):
        return harness.write_config(self.dir / "vae.json", {
            "vae": {**VAE, "channels": channels}, "data": {"folder": folder, "image_size": 16, "batch_size": 8, "valid_frac": 0.2, **data},
            "train": {"num_train_steps": 2, "device": "cpu", "save_results_every": 2, "save_model_every": 2},
            "tracker": harness.tracker("vae")})

    def test_grey_and_transparent_pictures_train_and_are_drawn_as_such(self):
        for folder, channels, stored, drawn in (("grey", 1, 0, 2), ("soft", 4, 6, 6)):
            self.make(folder, channels, stored)
            self.assertNotIn("transparent in part", self.train(self.of_folder(folder, channels), "--dry-run").stdout)
            self.train(self.of_folder(folder, channels))
            pairs = list((self.dir / "out/images").glob("*Train Samples*.png"))
            self.assertTrue(pairs)
            self.assertEqual({kind_of_png(path) for path in pairs}, {(8, drawn)})
            run("sample", "--checkpoint", "out/latest.pth", "--num", 2, "--out", f"drawn_{folder}", cwd=self.dir, check=0)
            self.assertEqual(harness.read_npy(self.dir / f"drawn_{folder}/samples.npy")[0], (2, channels, 16, 16))
            self.assertEqual(kind_of_png(next((self.dir / f"drawn_{folder}").glob("[0-9]*.png"))), (8, drawn))
            self.train(self.vae(folder, channels))
            self.assertEqual({kind_of_png(path) for path in (self.dir / "vae/results").glob("*.png")}, {(8, drawn)})
            for made in ("out", "vae"):
                shutil.rmtree(self.dir / made)

    def test_what_the_owner_would_not_expect_is_told_before_training(self):
        self.make("soft", 4, 6)
        self.make("dark", 1, 0, depth=16, largest=4000)
        (self.dir / "soft/x.bmp").write_bytes(b"BM")
        (self.dir / "soft/x.txt").write_text("a caption")
        unread = "left out 1 picture of kinds that are not read (1 .bmp): convert it to PNG or JPEG"
        for config in (self.of_folder("soft"), self.vae("soft", 3)):
            done = self.train(config, "--dry-run")
            self.assertRegex(done.stdout, r"of the first \d+ training pictures: \d+ pictures are transparent in part")
            self.assertIn(unread, " ".join((done.stdout + done.stderr).split()))
        self.assertNotIn("transparent in part", self.train(self.of_folder("soft", ground="white"), "--dry-run").stdout)
        done = self.train(self.vae("dark", 1), "--dry-run")
        self.assertIn("the largest value is 4,000, and 65,535 becomes white, so they are almost black; set data.range to 4000", done.stdout)
        self.assertNotIn("16 bits", self.train(self.vae("dark", 1, range=4000), "--dry-run").stdout)
        done = run("shards", "make", "--from", "soft", "--out", "packed", cwd=self.dir, check=0)
        said = " ".join((done.stdout + done.stderr).split())
        self.assertIn(unread, said)
        self.assertIn("40 pictures are transparent in part", said)
        self.assertNotIn("without a picture", said)
        done = run("init", "packed", "--out", "packed.json", cwd=self.dir, check=0)
        self.assertIn('found: the written config reads these pictures so: "ground": "white"\n', done.stdout)
        done = run("init", "soft", "--kind", "vae", "--out", "soft.json", cwd=self.dir, check=0)
        self.assertIn('found: the written config reads these pictures so: "ground": "white"', done.stdout)
        self.assertIn("40 pictures are transparent in part", run("shards", "check", "packed", cwd=self.dir, check=0).stdout)

    def test_a_picture_to_complete_is_laid_on_the_ground_of_the_training(self):
        self.make("soft", 4, 6)
        self.train(self.of_folder("soft", ground=[0, 0, 255]))
        (self.dir / "given.png").write_bytes(png([[255, 0, 0, 0] * 8 + [255, 0, 0, 255] * 8] * 16, 8, 6))
        (self.dir / "mask.png").write_bytes(png([[255] * 16] * 16, 8, 0))  # keeps all
        run("sample", "--checkpoint", "out/latest.pth", "--inpaint-image", "given.png", "--inpaint-mask", "mask.png", "--out", "drawn",
            cwd=self.dir, check=0)
        values = harness.read_npy(self.dir / "drawn/samples.npy")[1]
        self.assertEqual([round(value) for value in (values[0], values[15], values[512], values[527])], [0, 1, 1, 0])  # red, then blue

    def test_shards_make_warns_of_shards_among_the_pictures(self):
        harness.write_white(self.dir / "own", 2, 16)
        said = "reads each picture twice, from its file and from the shards"
        self.assertNotIn(said, run("shards", "make", "--from", "own", "--out", "beside", cwd=self.dir, check=0).stderr)
        done = run("shards", "make", "--from", "own/", "--out", "own/shards", cwd=self.dir, check=0)
        self.assertIn("--out own/shards is --from own/ or inside it: a VAE with that folder as its data.folder " + said, done.stderr)

    def test_a_first_config_of_grey_pictures_has_one_channel(self):
        self.make("dark", 1, 0, depth=16, largest=4000)
        self.make("coloured", 3, 2)
        for kind, folder, channels in (("decoder", "dark", 1), ("vae", "dark", 1), ("decoder", "coloured", None)):
            run("init", folder, "--kind", kind, "--out", "first.json", "--overwrite", cwd=self.dir, check=0)
            first = json.loads(harness.without_comments((self.dir / "first.json").read_text()))
            self.assertEqual(first[kind].get("channels"), channels)
            self.train("first.json", "--strict", "--dry-run")


if __name__ == "__main__":
    main()
