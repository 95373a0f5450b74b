# SPDX-License-Identifier: MIT
"""Commands that write into a folder: what others put there stays, and a signal ends them after a whole shard."""
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import time

import harness
from harness import BINARY, EndToEnd, main, run
from latent_test import VAE


def content(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def stopped_after_a_shard(*arguments, cwd, out):
    """Starts the command, and sends SIGTERM when the first shard is there. @return what it printed"""
    process = subprocess.Popen([BINARY, *map(str, arguments)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not list((cwd / out).glob("*.tar")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 75, f"exit {process.returncode}\n{output}"
    return output


def loses_its_lock(*arguments, cwd, out):
    """Starts the command, and lets another machine take its lock over while it sleeps. @return what it printed, and the tars
    that were there before"""
    process = subprocess.Popen([BINARY, *map(str, arguments)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not list((cwd / out).glob("*.tar")) and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # until it stands still
    lock = cwd / out / "shards.lock"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "host": "another", "boot_id": "another"}))
    tars = lambda: {name for name in content(cwd / out) if name.endswith(".tar")}
    before = tars()
    process.send_signal(signal.SIGCONT)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 2, f"exit {process.returncode}\n{output}"
    assert lock.exists()
    assert len(tars() - before) <= 1, "more than the shard that was just being put in its place"
    return " ".join(output.split()), before


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

    def test_shards_make_leaves_another_set_alone(self):
        broken = self.dir / "broken"
        broken.mkdir()
        for number, picture in enumerate(sorted(self.pictures.iterdir())[:4]):
            (broken / picture.name).write_bytes(picture.read_bytes()[:10 if number < 3 else None])
        run("shards", "make", "--from", self.pictures, "--out", "mine", cwd=self.dir, check=0)
        before = content(self.dir / "mine")
        self.assertEqual(len(before), 10)
        make = ["shards", "make", "--from", "broken", "--out", "mine", "--in-order"]
        done = run(*make, cwd=self.dir, check=2)
        self.assertIn("--out mine: expected only shards that this call makes, found others: 000000.tar to 000009.tar", done.stderr)
        self.assertIn("--overwrite", done.stderr)
        self.assertEqual(content(self.dir / "mine"), before)
        done = run(*make, "--overwrite", cwd=self.dir, check=0)
        self.assertIn("replaced: 000003.tar", done.stdout)
        self.assertIn("removed: 000000.tar to 000002.tar, 000004.tar to 000009.tar", done.stdout)
        self.assertEqual(list(content(self.dir / "mine")), ["000003.tar"])
        # The call that made a set may be repeated.
        done = run(*make, cwd=self.dir, check=0)
        self.assertIn("1 of 4 pictures in 1 shard (0 written, 1 was there already)", done.stdout)

    def test_shards_demo_removes_a_set_only_if_asked(self):
        demo = ["shards", "demo", "--num", 16, "--image-size", 16, "--out", "set"]
        run(*demo, cwd=self.dir, check=0)
        before = content(self.dir / "set")
        own = self.dir / "own/heldout/truth.json"
        own.parent.mkdir(parents=True)
        own.write_text("mine")
        done = run(*demo[:-1], "own", cwd=self.dir, check=2)
        self.assertIn("found heldout/truth.json", " ".join(done.stderr.split()))
        self.assertEqual(own.read_text(), "mine")
        (self.dir / "set/000020.tar").write_bytes(b"mine")
        done = run(*demo, cwd=self.dir, check=2)
        self.assertIn("found 000000.tar to 000015.tar, 000020.tar, img_emb/img_emb_000000.npy to", " ".join(done.stderr.split()))
        done = run(*demo, "--overwrite", cwd=self.dir, check=0)
        self.assertIn("removed: 000000.tar to 000015.tar, 000020.tar, ", done.stdout)
        self.assertEqual(content(self.dir / "set"), before)

    def many_pictures(self):
        many = self.dir / "many"
        many.mkdir()
        for number in range(40):
            for picture in self.pictures.iterdir():
                os.link(picture, many / f"{number}-{picture.name}")

    def test_a_signal_ends_the_packing_after_a_whole_shard(self):
        self.many_pictures()
        make = ["shards", "make", "--from", "many", "--out", "out", "--per-shard", 10]
        output = stopped_after_a_shard(*make, cwd=self.dir, out="out")
        self.assertIn("stopped by a signal", output)
        first = content(self.dir / "out")
        self.assertLess(len(first), 384)
        self.assertFalse([name for name in first if not name.endswith(".tar")])
        done = run(*make, cwd=self.dir, check=0)
        were = "was" if len(first) == 1 else "were"
        self.assertIn(f"3,840 of 3,840 pictures in 384 shards ({384 - len(first)} written, {len(first)} {were} there already)", done.stdout)
        self.assertLessEqual(first.items(), content(self.dir / "out").items())

    def test_no_more_shards_are_written_after_the_lock_was_lost(self):
        self.many_pictures()
        said, before = loses_its_lock("shards", "make", "--from", "many", "--out", "out", "--per-shard", 10, cwd=self.dir, out="out")
        self.assertIn("--out: another process has taken 'out' over while this one did not answer", said)
        self.assertIn("Stop one of the two, and make the shards again.", said)
        self.assertLess(len(before), 384)

    def test_two_at_once_do_not_mix_their_shards(self):
        self.many_pictures()
        make = ["shards", "make", "--from", "many", "--out", "out"]
        first = subprocess.Popen([BINARY, *make, "--per-shard", "10"], cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "OMP_NUM_THREADS": "1"})
        while not list((self.dir / "out").glob("*.tar")) and first.poll() is None:
            time.sleep(0.002)
        first.send_signal(signal.SIGSTOP)
        done = run(*make, "--per-shard", 7, cwd=self.dir, check=2)
        self.assertRegex(" ".join(done.stderr.split()), rf"--out: 'out' is in use by process {first.pid} on host .* Two commands would mix their shards\.")
        first.kill()
        first.communicate(timeout=60)
        # A dead one's lock is taken over, and what it packed is kept.
        done = run(*make, "--per-shard", 10, cwd=self.dir, check=0)
        self.assertIn("shards.lock is taken over", " ".join(done.stderr.split()))
        self.assertEqual(len(list((self.dir / "out").glob("*.tar"))), 384)
        self.assertFalse(list((self.dir / "out").glob("*.lock*")))


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
        (shards / "000003.tar").write_bytes(whole)
        done = self.encode(shards=shards)
        self.assertIn("6 latents in 1 shard, 15 shards are there already\n", done.stdout)
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

    def test_shards_of_another_set_are_neither_kept_as_ones_own_nor_removed_unasked(self):
        self.encode()
        before = content(self.dir / "encoded")
        shards = self.copy_of_the_shards()
        done = self.encode(shards=shards, check=2)
        self.assertIn("found 000000.tar to 000015.tar, with latents of another VAE, image size, preprocessing or set (latents.json)",
                      " ".join(done.stderr.split()))
        self.assertEqual(content(self.dir / "encoded"), before)
        done = self.encode("--overwrite", shards=shards)
        self.assertIn("removing: 000000.tar to 000015.tar\n96 latents in 16 shards\n", done.stdout)
        self.assertIn("16 shards are there already", self.encode(shards=shards).stdout)
        (self.dir / "plain").mkdir()
        (self.dir / "plain/000077.tar").write_bytes(b"mine")
        done = self.encode(out="plain", check=2)
        self.assertIn("found 000077.tar, and no latents.json beside it", " ".join(done.stderr.split()))

    def test_the_shards_of_an_older_version_which_noted_no_set_are_left_alone(self):
        self.encode()
        path = self.dir / "encoded/latents.json"
        manifest = json.loads(path.read_text())
        manifest.pop("webdataset_base_url")
        path.write_text(json.dumps(manifest, indent=2) + "\n")
        before = content(self.dir / "encoded")
        done = self.encode(check=2)
        self.assertIn("with latents of another VAE, image size, preprocessing or set (latents.json)", " ".join(done.stderr.split()))
        self.assertEqual(content(self.dir / "encoded"), before)

    def test_no_more_shards_are_written_after_the_lock_was_lost(self):
        said, before = loses_its_lock("shards", "encode", "--config", self.one_by_one(), "--out", "encoded", cwd=self.dir, out="encoded")
        self.assertIn("--out: another process has taken 'encoded' over while this one did not answer", said)
        self.assertLess(len(before), 16)

    def one_by_one(self):
        return self.config("encode.json", decoder={"vae": [{"checkpoint": str(self.base / "vae/checkpoint.pth")}]}, data={"batch_size": 1})

    def test_a_signal_ends_it_after_a_whole_shard(self):
        config = self.one_by_one()
        encode = ["shards", "encode", "--config", config, "--out", "encoded"]
        output = stopped_after_a_shard(*encode, cwd=self.dir, out="encoded")
        self.assertIn("stopped by a signal; the same command continues with the next shard", output)
        kept = len(list((self.dir / "encoded").glob("*.tar")))
        self.assertLess(kept, 16)
        self.assertFalse(list((self.dir / "encoded").glob("*.part")))
        done = run(*encode, cwd=self.dir, check=0)
        self.assertRegex(done.stdout, f"in {16 - kept} shards?, {kept} shards? (is|are) there already")


if __name__ == "__main__":
    main()
