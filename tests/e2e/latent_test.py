# SPDX-License-Identifier: MIT
"""Decoders in the latent space of a VAE: training, files, resume, sampling, and what can be wrong with decoder.vae."""
import json
import shutil
import struct
import tarfile

import harness
from harness import EndToEnd, checkpoint_content, main, run

VAE = {"dim": 16, "layers": 1, "codebook_size": 64, "use_vgg_and_gan": False}


class Latent(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        config = {"vae": VAE, "data": {"folder": str(cls.shards), "image_size": 16, "batch_size": 8, "valid_frac": 0.2},
                  "train": {"num_train_steps": 6, "device": "cpu", "save_results_every": 100, "save_model_every": 5, "ema_update_after_step": 0},
                  "tracker": harness.tracker("vae")}
        done = run("--config", harness.write_config(cls.base / "vae.json", config), cwd=cls.base, check=0)
        # Straight from the tar shards, those of the held-out pictures included.
        assert "pictures: 128 train, 32 val" in " ".join(done.stdout.split()), done.stdout
        cls.vae = cls.base / "vae" / "checkpoint.pth"

    def latent(self, name="config.json", out="out", vae=None, decoder=None, **sections):
        entry = {"checkpoint": str(self.vae)} if vae is None else vae
        entries = entry if isinstance(entry, list) else [entry]
        return self.config(name, out, decoder={"vae": entries, **(decoder or {})}, **sections)

    def weights(self, path, prefix):
        """Tensors whose names begin so, without that."""
        tensors = checkpoint_content(self.dir / path, self.dir)[0]
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    def test_a_decoder_trains_and_draws_behind_a_vae_that_it_leaves_as_it_is(self):
        self.assertIn("latents of unet 1: 16 channels of 8 x 8, mean", self.train(self.latent(train={"epochs": 10, "lr": 3e-3})).stdout)
        run("convert", self.vae, "averaged.pth", "--ema", cwd=self.dir, check=0)
        before, after = self.weights("averaged.pth", ""), self.weights("out/checkpoint.pth", "model.vaes.0.")
        self.assertGreater(len(before), 20)
        self.assertEqual(before, after)
        self.assertEqual(self.weights("out/model.pth", "vaes.0."), before)
        losses = self.logged("out", "Unet 0 Training Loss")
        self.assertLess(losses[-1], losses[0])
        # A checkpoint needs the VAE's file no more.
        shutil.copy(self.dir / "out/checkpoint.pth", self.dir / "alone.pth")
        config = json.loads(self.train(self.latent("other.json", "other"), "--dump-config").stdout)
        self.assertEqual(config["decoder"]["vae"][0]["model"]["codebook_size"], 64)
        embeds = self.shards / "img_emb/img_emb_000000.npy"
        rows = harness.read_npy(embeds)[0][0]
        noise = self.dir / "noise.npy"
        harness.write_npy(noise, (rows, 16, 8, 8), [((i * 37) % 101 - 50) / 30 for i in range(rows * 16 * 64)])
        env = {"HOME": str(self.dir)}
        for out in ("one", "two"):
            run("sample", "--checkpoint", "alone.pth", "--image-embeds", embeds, "--init-noise", noise, "--timesteps", 4, "--out", out,
                cwd=self.dir, check=0, env=env)
        shape, values = harness.read_npy(self.dir / "one/samples.npy")
        self.assertEqual(shape, (rows, 3, 16, 16))
        self.assertEqual(values, harness.read_npy(self.dir / "two/samples.npy")[1])
        self.assertTrue(all(0 <= value <= 1 for value in values))
        harness.write_npy(noise, (rows, 3, 16, 16), [0.0] * (rows * 768))
        done = run("sample", "--checkpoint", "alone.pth", "--image-embeds", embeds, "--init-noise", noise, "--out", "three", cwd=self.dir, check=3)
        self.assertIn(f"--init-noise of unet 1: expected shape [{rows}, 16, 8, 8], got [{rows}, 3, 16, 16]", done.stderr)
        done = run("sample", "--checkpoint", "alone.pth", "--image-embeds", embeds, "--inpaint-image", "one/0000.png", "--inpaint-mask",
                   "one/0000.png", "--out", "four", cwd=self.dir, check=2)
        self.assertIn("unet 1 works in the latent space of a VAE", done.stderr)

    def test_a_vae_whose_weights_are_not_finite_is_refused_at_the_start(self):
        run("convert", self.vae, "vae.safetensors", cwd=self.dir, check=0)
        file = self.dir / "vae.safetensors"
        weight = harness.read_safetensors(file)[0]["model.enc_dec.encoders.0.weight"][1]
        file.write_bytes(file.read_bytes().replace(weight, struct.pack("<f", float("nan")) + weight[4:]))
        run("convert", "vae.safetensors", "nan.pth", cwd=self.dir, check=0)
        config = self.latent(vae={"checkpoint": str(self.dir / "nan.pth"), "model": VAE, "use_ema": False})
        self.refuse_start(config, "out", 3, "nan.pth: enc_dec.encoders.0.weight: the weights are not finite")

    def test_a_stopped_run_goes_on_bit_for_bit_without_the_vaes_weights(self):
        own = self.dir / "vae.pth"
        shutil.copy(self.vae, own)
        vae = {"checkpoint": str(own), "model": VAE, "scale": 0.5}
        self.train(self.latent("whole.json", "whole", vae=vae, train={"epochs": 3}))
        config = self.latent("cut.json", "cut", vae=vae, train={"epochs": 3})
        self.train_until(config, "Starting epoch 1")
        # Another VAE lies there meanwhile: that of the checkpoint is taken.
        later = json.loads((self.base / "vae.json").read_text())
        later["train"]["num_train_steps"] = 2
        later["tracker"] = harness.tracker("again")
        later["data"]["folder"] = str(self.shards)
        self.train(harness.write_config(self.dir / "again.json", later))
        shutil.copy(self.dir / "again/checkpoint.pth", own)
        self.train(config)
        ours, theirs = (checkpoint_content(self.dir / name / "checkpoint.pth", self.dir)[0] for name in ("whole", "cut"))
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertGreater(len(ours), 200)
        for key, value in ours.items():
            self.assertEqual(value, theirs[key], key)
        changed = self.latent("cut.json", "cut", vae={**vae, "scale": 2.0}, train={"epochs": 4})
        self.assertIn("/decoder/vae/0/scale", " ".join(self.train(changed, check=2).stderr.split()))

    def test_latents_in_the_shards_train_as_pictures_do(self):
        config = self.latent("live.json", "live", train={"epochs": 2})
        done = run("shards", "encode", "--config", config, "--out", "encoded", cwd=self.dir, check=0)
        shards = sorted(path.name for path in self.shards.glob("[0-9]*.tar"))
        self.assertEqual(sorted(path.name for path in (self.dir / "encoded").glob("*.tar")), shards)
        self.assertIn(f"96 latents in {len(shards)} shards", done.stdout)
        self.assertRegex(done.stdout, r"standard deviation [0-9.]+: /decoder/vae/0/scale [0-9.]+ brings them to 1")
        with tarfile.open(self.dir / "encoded" / shards[0]) as tar:
            fields = {member.name.split(".", 1)[1] for member in tar}
        self.assertLessEqual({"jpg", "txt", "latent.npy"}, fields)
        # Several processes share the shards, and say the same.
        shared = run("shards", "encode", "--config", config, "--out", "shared", "--nproc-per-node", 3, cwd=self.dir, check=0)
        self.assertEqual(shared.stdout, done.stdout.replace("encoded", "shared"))
        for path in (self.dir / "encoded").iterdir():
            self.assertEqual((self.dir / "shared" / path.name).read_bytes(), path.read_bytes(), path.name)
        data = {"webdataset_base_url": f"{self.dir}/encoded/{{}}.tar", "latents_in_tar": True}
        self.train(config)
        self.train(self.latent("stored.json", "stored", train={"epochs": 2}, data=data))
        live, stored = (self.logged(name, "Unet 0 Training Loss") for name in ("live", "stored"))
        self.assertGreater(len(live), 1)
        for one, other in zip(live, stored, strict=True):
            self.assertAlmostEqual(one, other, delta=1e-4 * one)
        done = self.train(self.latent("other.json", "other", vae={"checkpoint": str(self.base / "vae/results/vae.0.pt"), "model": VAE}, data=data),
                          check=3)
        self.assertRegex(done.stderr, r'/decoder/vae/0/vae_sha256: the run has "[0-9a-f]+", the latents were made with "[0-9a-f]+"')
        self.assertIn("make them again: dalle2-train shards encode", done.stderr)
        # Whatever else decides what the pictures look like, in a dry run too.
        changed = {"ground": "white", "apply_exif": True, "range": 4095, "preprocessing": {"CenterCrop": {"size": 16}, "ToTensor": True}}
        done = self.train(self.latent("changed.json", "changed", data={**data, **changed}), "--dry-run", check=3)
        for said in ('/data/ground: the run has "white", the latents were made with null', "/data/apply_exif: the run has true",
                     "/data/range: the run has 4095", '/data/preprocessing: the run has {"CenterCrop":'):
            self.assertIn(said, done.stderr)
        # A folder without a note of it: the first latents tell.
        (self.dir / "encoded/latents.json").rename(self.dir / "latents.json")
        done = self.train(self.latent("other.json", "other", vae={"checkpoint": str(self.base / "vae/results/vae.0.pt"), "model": VAE}, data=data),
                          check=3)
        self.assertIn("the latents in the shards are not what /decoder/vae/0 makes of their pictures", done.stderr)
        (self.dir / "latents.json").rename(self.dir / "encoded/latents.json")
        done = run("shards", "encode", "--config", self.latent("other.json", "other"), "--out", self.shards, cwd=self.dir, check=2)
        self.assertIn("000000.tar, which is one of the shards to read", " ".join(done.stderr.split()))
        self.assertIn("no field latent.npy", self.train(self.latent("plain.json", "plain", data={"latents_in_tar": True}), check=3).stderr)
        mirrored = {"RandomHorizontalFlip": True, "ToTensor": True}
        done = self.train(self.latent("mirrored.json", "mirrored", data={**data, "preprocessing": mirrored}), check=2)
        self.assertIn("/data/preprocessing/RandomHorizontalFlip: cannot be used with data.latents_in_tar", done.stderr)
        done = run("shards", "encode", "--config", self.latent("mirrored.json", data={"preprocessing": mirrored}), "--out", "more", cwd=self.dir,
                   check=2)
        self.assertIn("/data/preprocessing/RandomHorizontalFlip: gives a different picture each time", done.stderr)
        done = run("shards", "encode", "--config", self.config("pixels.json"), "--out", "more", cwd=self.dir, check=2)
        self.assertIn("/decoder/vae: expected a VAE before the first unet, found none", done.stderr)
        done = self.train(self.config("pixels.json", data=data), check=2)
        self.assertIn("/data/latents_in_tar: needs a VAE before the first unet", done.stderr)

    def test_encoding_ends_where_the_network_is_lost(self):
        config = self.latent(data={"webdataset_base_url": f"http://127.0.0.1:{harness.free_port()}/{{}}.tar"})
        done = run("shards", "encode", "--config", config, "--out", "encoded", cwd=self.dir, check=6, env={"DALLE2_NET_TIMEOUT": "1"})
        self.assertEqual(done.stderr.count("The shard is skipped"), 2)

    def test_every_file_of_a_vae_will_do(self):
        results = self.base / "vae" / "results"
        run("convert", self.vae, "vae.safetensors", cwd=self.dir, check=0)
        for number, (path, ema) in enumerate([(results / "vae.5.pt", False), (results / "vae.5.ema.pt", True), (results / "vae.5.ema.pt", False),
                                              (self.base / "vae" / "model.pth", True), ("vae.safetensors", True)]):
            with self.subTest(path=path, ema=ema):
                vae = {"checkpoint": str(path), "model": VAE, "use_ema": ema}
                self.train(self.latent("config.json", f"out{number}", vae=vae, train={"epoch_samples": 8}))
        self.assertEqual(self.weights("out0/checkpoint.pth", "model.vaes.0."), self.weights("out2/checkpoint.pth", "model.vaes.0."))
        self.assertEqual(self.weights("out1/checkpoint.pth", "model.vaes.0."), self.weights("out4/checkpoint.pth", "model.vaes.0."))

    def test_what_is_wrong_is_told_at_the_start(self):
        self.train(self.config("pixels.json", "pixels", train={"epoch_samples": 8}))
        given = {"checkpoint": str(self.vae)}
        bare = str(self.base / "vae" / "results" / "vae.5.pt")
        (self.dir / "damaged.pth").write_bytes(self.vae.read_bytes()[:5000])
        for vae, decoder, code, text in [
                ({"checkpoint": "absent.pth"}, {}, 2, "/decoder/vae/0/checkpoint: absent.pth: no such file"),
                ({"checkpoint": "damaged.pth"}, {}, 3, "damaged.pth"),
                ({"checkpoint": "pixels/checkpoint.pth"}, {}, 3, "expected a checkpoint of a vae, got one of a decoder"),
                ({"checkpoint": bare}, {}, 2, "this file has no config: give the `vae` section that it was trained with"),
                ({"checkpoint": bare, "model": {**VAE, "kind": "dalle2", "codebook_size": None, "image_size": 16}}, {}, 3,
                 "expected the weights of a VAE of the kind dalle2, got those of the kind muse"),
                ({"checkpoint": bare, "model": {**VAE, "dim": 32}}, {}, 3, "vae.5.pt"),
                ({**given, "model": {**VAE, "channels": 1}}, {}, 2, "the VAE is of pictures of 1 channel, decoder.channels is 3"),
                (given, {"image_size": 17}, 2, "the image size of unet 1 must be divisible by 2, the pixels of a latent of its VAE, got 17"),
                (given, {"image_size": 14}, 2, "must be divisible by 4 (its VAE divides it by 2, 2 dim_mults halve it 1 time), got 14"),
                (given, {"auto_normalize_img": False}, 2, "/decoder/auto_normalize_img: must be true with decoder.vae")]:
            with self.subTest(text):
                self.refuse_start(self.latent("wrong.json", "wrong", vae=vae, decoder=decoder), "wrong", code, text)


if __name__ == "__main__":
    main()
