#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training from shards behind servers that cut, refuse, stall and dawdle, and from a store that speaks S3."""
import shutil
import signal
import time

import harness
from bad_server import Server
from hub_double import TOKEN as HUB_TOKEN, HubDouble, Repo
from s3_double import SECRET, TOKEN, S3Double


class RemoteShards(harness.EndToEnd):
    def remote(self, server, name="remote.json", out="remote", **data):
        return self.config(name, out, data={"webdataset_base_url": f"{server.url}/{{}}.tar", "num_workers": 2, **data})

    def weights(self, out):
        """The averaged weights, without the config that lies beside them."""
        harness.run("convert", self.dir / out / "latest.pth", self.dir / f"{out}.safetensors", "--ema", "--overwrite",
                    cwd=self.dir, check=0)
        return harness.read_safetensors(self.dir / f"{out}.safetensors")[0]

    def env(self, **more):
        return {"DALLE2_NET_TIMEOUT": "2", "DALLE2_TRACE_SAMPLES": str(self.dir / "trace"), **more}

    def trace(self):
        path = self.dir / "trace.rank0"
        text = path.read_text()
        path.unlink()
        return text

    def test_shards_of_the_hub_give_the_weights_of_local_shards(self):
        self.train(self.config(out="local"), env=self.env())
        expected = self.trace()
        with HubDouble() as hub:
            repo = hub.repos["datasets/owner/stamps"] = Repo(True)
            for path in self.shards.glob("*.tar"):
                repo.files["main"][path.name] = repo.files["main"][f"train/{path.name}"] = path.read_bytes()
            for path in (self.shards / "img_emb").iterdir():
                repo.files["main"][f"img_emb/{path.name}"] = path.read_bytes()
            repo.lfs_paths = set(repo.files["main"])
            for out, folder in (("root", ""), ("below", "train/")):
                data = {"webdataset_base_url": f"hf://datasets/owner/stamps/{folder}{{}}.tar", "img_embeddings_url": "hf://datasets/owner/stamps/img_emb"}
                done = self.train(self.config(out=out, data=data), env=self.env(**hub.env()))
                self.assertEqual(self.trace().replace(f"hf://datasets/owner/stamps/{folder}", f"{self.shards}/"), expected)
                self.assertEqual(self.weights(out), self.weights("local"))
                self.assertNotIn("absent", done.stdout + done.stderr)
                self.assertNotIn(HUB_TOKEN, done.stdout + done.stderr)
            done = self.train(self.config(data={**data, "webdataset_base_url": "hf://datasets/owner/none/{}.tar"}), check=3, env=self.env(**hub.env()))
            self.assertIn("There is no owner/none for this login", done.stderr)

    def test_a_store_gives_the_weights_of_local_shards(self):
        bucket = self.dir / "bucket"
        shutil.copytree(self.shards, bucket / "a b+c")

        def mistreat(handler, key, number):
            if number == 1:
                return handler.refuse(503)
            return number == 2 and handler.answer(key, most=200)

        self.train(self.config(out="local"))
        config = self.config(out="remote", data={"webdataset_base_url": "s3://my-bucket/a b+c/{}.tar",
                                                 "img_embeddings_url": "s3://my-bucket/a b+c/img_emb"})
        with S3Double(bucket, "my-bucket", mistreat) as store:
            done = self.train(config, env=self.env(**store.env()))
            self.assertEqual(store.faults, [])
            self.assertGreater(store.lists, 4)
            self.assertGreater(store.ranges, 0)
            self.assertEqual(self.weights("remote"), self.weights("local"))
            self.assertNotIn("left out", done.stdout + done.stderr)
            done = self.train(config, check=6, env=self.env(**store.env(AWS_SECRET_ACCESS_KEY="wrong-secret")))
            self.assertIn("SignatureDoesNotMatch", done.stderr)
            self.assertIn("secret key does not belong", done.stderr)
            for text in (SECRET, "wrong-secret", TOKEN):
                self.assertNotIn(text, done.stdout + done.stderr)

    def test_a_stop_signal_ends_a_stall_at_once_and_the_run_goes_on(self):
        self.train(self.config(out="local"))
        expected = self.weights("local")
        stalled = []

        def mistreat(handler, name, number):
            with handler.server.lock:
                stalled.append(name)
            return len(stalled) > 8 and handler.stall()

        with Server(self.shards, mistreat) as server:
            secret = f"{server.url.replace('://', '://user:canary1@')}/{{}}.tar?sig=canary2"
            config = self.remote(server, webdataset_base_url=secret)
            process = harness.start("--config", config, cwd=self.dir, env={"DALLE2_NET_TIMEOUT": "60"})
            while len(stalled) < 9 and process.poll() is None:
                time.sleep(0.05)
            time.sleep(1)
            begin = time.monotonic()
            process.send_signal(signal.SIGTERM)
            out = self.end_of(process, 75)
            self.assertLess(time.monotonic() - begin, 5)
            server.mistreat = lambda handler, name, number: False
            done = self.train(config, env=self.env())
        self.assertEqual(self.weights("remote"), expected)
        self.assertNotIn("canary", out + done.stdout + done.stderr)
        files = [path for path in (self.dir / "remote").rglob("*") if path.is_file()]
        self.assertGreaterEqual(len(files), 4)
        for path in files:
            self.assertNotIn(b"canary", path.read_bytes(), path)

    def test_shards_check_says_that_a_host_cannot_be_reached(self):
        done = harness.run("shards", "check", "http://127.0.0.1:9/{0..1}.tar", cwd=self.dir, check=6,
                           env=self.env(DALLE2_NET_TIMEOUT="1"))
        self.assertIn("some could not be reached", done.stderr)

    def test_commands_run_only_where_the_config_file_says_so(self):
        command = {"webdataset_base_url": f"pipe:touch ran; cat {self.shards}/{{}}.tar"}
        for data in (command, {**command, "allow_pipe": False}):
            for arguments in ((), ("--dry-run",), ("--set", "/data/allow_pipe=true")):
                done = self.train(self.config(data=data), *arguments, check=2)
                self.assertIn("/data/allow_pipe: ", done.stderr)
                self.assertIn('write "allow_pipe": true into ', done.stderr)
        embeddings = ("--img-embeddings", "pipe:touch ran; exit {}")
        self.assertIn("--allow-pipe", harness.run("shards", "check", self.shards, *embeddings, cwd=self.dir, check=2).stderr)
        self.assertFalse((self.dir / "ran").exists())
        self.train(self.config(data={**command, "allow_pipe": True}))
        self.assertTrue((self.dir / "ran").exists())

    def test_a_config_inside_a_checkpoint_runs_no_command(self):
        data = {"webdataset_base_url": f"pipe:touch ran; cat {self.shards}/{{}}.tar", "allow_pipe": True}
        config = self.config(data=data)
        self.train(config)
        (self.dir / "ran").unlink()
        heldout = next((self.shards / "heldout").rglob("*.npy"))
        sample = ("sample", "--checkpoint", "out/checkpoint.pth", "--image-embeds", heldout, "--out", "drawn", "--overwrite")
        harness.run(*sample, cwd=self.dir, check=0)
        # Nor does the file beside it, which need not allow what is not done.
        data["allow_pipe"] = False
        harness.run(*sample, "--config", self.config(data=data), cwd=self.dir, check=0)
        self.assertFalse((self.dir / "ran").exists())


if __name__ == "__main__":
    harness.main()
