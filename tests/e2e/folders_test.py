# SPDX-License-Identifier: MIT
"""Commands that write shards into a folder: what they warn of, what costs a shard, and a signal that leaves nothing."""
import signal
import time

import harness
from harness import EndToEnd, main, run
from latent_test import VAE


class Folders(EndToEnd):
    def test_shards_make_warns_of_shards_among_the_pictures(self):
        harness.write_white(self.dir / "own", 2, 16)
        said = "reads each picture twice, from its file and from the shards"
        self.assertNotIn(said, run("shards", "make", "--from", "own", "--out", "beside", cwd=self.dir, check=0).stderr)
        done = run("shards", "make", "--from", "own/", "--out", "own/shards", cwd=self.dir, check=0)
        self.assertIn("--out own/shards is --from own/ or inside it: a VAE with that folder as its data.folder " + said, done.stderr)


class Encoding(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        config = {"vae": VAE, "data": {"folder": str(cls.shards), "image_size": 16, "batch_size": 8},
                  "train": {"num_train_steps": 1, "device": "cpu", "save_results_every": 100, "save_model_every": 1},
                  "tracker": {"data_path": "vae", "log": {"log_type": "console"}, "save": {"save_to": "local", "save_latest_to": "vae.pth"}}}
        run("--config", harness.write_config(cls.base / "vae.json", config), cwd=cls.base, check=0)

    def encode(self, *arguments, check=0, shards=None, out="encoded"):
        data = {"webdataset_base_url": f"{shards or self.shards}/{{}}.tar"}
        config = self.config("encode.json", decoder={"vae": [{"checkpoint": str(self.base / "vae/checkpoint.pth")}]}, data=data)
        return run("shards", "encode", "--config", config, "--out", out, *arguments, cwd=self.dir, check=check)

    def copy_of_the_shards(self):
        copy = self.dir / "shards"
        copy.mkdir()
        for shard in self.shards.glob("[0-9]*.tar"):
            (copy / shard.name).write_bytes(shard.read_bytes())
        return copy

    def test_a_damaged_shard_is_passed_over_and_counted(self):
        shards = self.copy_of_the_shards()
        whole = (shards / "000003.tar").read_bytes()
        (shards / "000003.tar").write_bytes(whole[:2000])
        done = self.encode(shards=shards)
        self.assertRegex(done.stdout, r"90 latents in 15 shards, 1 shard skipped\n")
        self.assertRegex(" ".join(done.stderr.split()), r"000003.tar.* The shard is skipped")
        self.assertEqual(len(list((self.dir / "encoded").glob("*.tar"))), 15)
        self.assertFalse(list((self.dir / "encoded").glob("*.part")))
        for shard in shards.iterdir():
            shard.write_bytes(whole[:2000])
        self.encode(shards=shards, out="none", check=3)

    def test_a_network_that_is_lost_ends_it(self):
        url = f"http://127.0.0.1:{harness.free_port()}"
        done = run("shards", "encode", "--config",
                   self.config("encode.json", decoder={"vae": [{"checkpoint": str(self.base / "vae/checkpoint.pth")}]},
                               data={"webdataset_base_url": f"{url}/{{}}.tar"}),
                   "--out", "encoded", cwd=self.dir, check=6, env={"DALLE2_NET_TIMEOUT": "1"})
        self.assertEqual(done.stderr.count("The shard is skipped"), 2)

    def test_a_signal_ends_it_and_leaves_no_shards(self):
        config = self.config("encode.json", decoder={"vae": [{"checkpoint": str(self.base / "vae/checkpoint.pth")}]}, data={"batch_size": 1})
        process = harness.start("shards", "encode", "--config", config, "--out", "encoded", cwd=self.dir)
        while not list((self.dir / "encoded").glob("shards.part/*.tar")) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        output = self.end_of(process, 75)
        self.assertIn("stopped by a signal; no shard was written", output)
        self.assertFalse((self.dir / "encoded").exists())


if __name__ == "__main__":
    main()
