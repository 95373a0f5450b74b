# SPDX-License-Identifier: MIT
"""Commands that write into a folder: what is there stays unless it is to be replaced, and a signal leaves nothing."""
import hashlib
import os
import pathlib
import signal
import tarfile
import time

import harness
from harness import EndToEnd, main, run
from latent_test import VAE


def content(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def stopped_after_a_shard(*arguments, cwd, out, ending=signal.SIGTERM):
    """Starts the command, and sends the signal when the first shard is made. @return its exit code, and what it printed"""
    process = harness.start(*arguments, cwd=cwd)
    while not list((cwd / out).glob("shards.part/*.tar")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(ending)
    output = process.communicate(timeout=120)[0]
    return process.returncode, output


class Folders(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pictures = cls.base / "pictures"
        cls.pictures.mkdir()
        for shard in sorted(cls.shards.glob("[0-9]*.tar")):
            with tarfile.open(shard) as tar:
                for member in tar:
                    if member.name.endswith(".jpg"):
                        (cls.pictures / member.name).write_bytes(tar.extractfile(member).read())

    def test_shards_make_warns_of_shards_among_the_pictures(self):
        pictures = self.dir / "own"
        pictures.mkdir()
        for picture in sorted(self.pictures.iterdir())[:2]:
            (pictures / picture.name).write_bytes(picture.read_bytes())
        said = "reads each picture twice, from its file and from the shards"
        done = run("shards", "make", "--from", "own", "--out", "beside", cwd=self.dir, check=0)
        self.assertNotIn(said, done.stderr)
        done = run("shards", "make", "--from", "own/", "--out", "own/shards", cwd=self.dir, check=0)
        self.assertIn("--out own/shards is --from own/ or inside it: a VAE with that folder as its data.folder " + said, done.stderr)

    def test_shards_make_replaces_a_set_only_if_asked(self):
        run("shards", "make", "--from", self.pictures, "--out", "mine", cwd=self.dir, check=0)
        before = content(self.dir / "mine")
        self.assertEqual(len(before), 10)
        make = ["shards", "make", "--from", self.pictures, "--out", "mine", "--per-shard", 50]
        done = run(*make, cwd=self.dir, check=2)
        self.assertIn("--out mine: expected a folder without shards, found 000000.tar to 000009.tar", done.stderr)
        self.assertIn("--overwrite", done.stderr)
        self.assertEqual(content(self.dir / "mine"), before)
        done = run(*make, "--overwrite", cwd=self.dir, check=0)
        self.assertIn("removed: 000000.tar to 000009.tar", done.stdout)
        self.assertEqual(sorted(content(self.dir / "mine")), ["000000.tar", "000001.tar"])

    def many_pictures(self):
        many = self.dir / "many"
        many.mkdir()
        for number in range(40):
            for picture in self.pictures.iterdir():
                os.link(picture, many / f"{number}-{picture.name}")

    def test_a_signal_ends_the_packing_and_the_next_call_makes_the_set(self):
        self.many_pictures()
        make = ["shards", "make", "--from", "many", "--out", "out", "--per-shard", 10]
        code, output = stopped_after_a_shard(*make, cwd=self.dir, out="out")
        self.assertEqual(code, 75, output)
        self.assertIn("stopped by a signal; no shard was written", output)
        self.assertEqual(harness.left_by_refused_start(self.dir / "out"), [])
        self.assertEqual(stopped_after_a_shard(*make, cwd=self.dir, out="out", ending=signal.SIGKILL)[0], -signal.SIGKILL)
        self.assertEqual(os.listdir(self.dir / "out"), ["shards.part"])
        done = run(*make, cwd=self.dir, check=0)
        self.assertIn("3,840 of 3,840 pictures in 384 shards\n", done.stdout)
        self.assertEqual(len(os.listdir(self.dir / "out")), 384)


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
        code, output = stopped_after_a_shard("shards", "encode", "--config", config, "--out", "encoded", cwd=self.dir, out="encoded")
        self.assertEqual(code, 75, output)
        self.assertIn("stopped by a signal; no shard was written", output)
        self.assertFalse((self.dir / "encoded").exists())


if __name__ == "__main__":
    main()
