#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checkpoints that come from and go to services: the Hugging Face hub, stores of S3, web servers. They refuse, cut, stall and
lie as a test asks them to; the run ends as it would have, and nothing is lost."""
import base64
import contextlib
import hashlib
import json
import shutil
import os

import harness
from bad_server import Server
from harness import EndToEnd, checkpoint_content, needs_reference, run, run_reference
from hub_double import TOKEN, HubDouble, Repo
from s3_double import REGION, SECRET, S3Double
from wandb_double import WandbDouble

REPO = "owner/decoder"
WANDB_RUN = ("team", "project", "run1")
# Nothing of this machine's user.
AWAY = {"HF_HOME": "/nonexistent", "HF_TOKEN": "", "HF_ENDPOINT": "", "NETRC": "/nonexistent", "WANDB_API_KEY": "", "WANDB_MODE": "",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_CONFIG_FILE": "/nonexistent"}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Services(EndToEnd):
    def setUp(self):
        super().setUp()
        for name in ("bucket", "web"):
            (self.dir / name).mkdir()

    def write(self, name="config.json", out="out", save=None, load=None, epochs=1, pictures=0, **tracker):
        return self.config(name, out, data={"batch_size": 8}, train={"epochs": epochs, "n_sample_images": pictures},
                           tracker={**tracker, **({} if save is None else {"save": save}), "load": load})

    def hub_saver(self, **more):
        return {"save_to": "huggingface", "huggingface_repo": REPO, "save_latest_to": "latest.pth", "model_card": False, **more}

    def env(self, *services, **more):
        env = {**AWAY, "DALLE2_NET_TIMEOUT": "2"}
        for service in services:
            env.update(service.env())
        return {**env, **more}

    def content(self, path="out/checkpoint.pth"):
        return (self.dir / path).read_bytes()

    def outbox(self, out="out"):
        folder = self.dir / out / "outbox"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


class Resumes(Services):
    def test_a_run_is_resumed_on_an_empty_data_path_from_each_service_alone(self):
        """Bit for bit: what a run of two epochs leaves."""
        self.train(self.write("through.json", "through", epochs=2))
        expected = checkpoint_content(self.dir / "through/checkpoint.pth", self.dir)
        with HubDouble() as hub, S3Double(self.dir / "bucket", "my-bucket") as store, Server(self.dir / "web") as web, \
                WandbDouble() as wandb:
            env = self.env(hub, store, wandb)
            wandb_run = {"wandb_run_path": "/".join(WANDB_RUN)}
            save = [{"save_to": "wandb", **wandb_run, "save_latest_to": "kept/latest.pth"},
                    self.hub_saver(save_meta_to="configs"),
                    {"save_to": "s3", "url": "s3://my-bucket/runs/a b", "save_latest_to": "latest.pth"},
                    {"save_to": "url", "url": f"{web.url}/dav", "save_latest_to": "run/{epoch:02d}/latest.pth"},
                    {"save_to": "url", "url": f"{web.url}/?signature=canary", "save_latest_to": "presigned.pth", "save_type": "model"}]
            done = self.train(self.write(save=save), env=env)
            saved = self.content()
            self.assertEqual(self.outbox(), [])
            self.assertEqual(hub.file(REPO, "latest.pth"), saved)
            self.assertTrue(hub.repos[REPO].private)
            self.assertEqual(hub.file(REPO, "configs/decoder_config.json"), self.content("out/decoder_config.json"))
            self.assertEqual(self.content("bucket/runs/a b/latest.pth"), saved)
            self.assertEqual(self.content("web/dav/run/00/latest.pth"), saved)
            self.assertEqual(self.content("web/presigned.pth"), self.content("out/model.pth"))
            self.assertEqual(wandb.runs[WANDB_RUN].files["kept/latest.pth"], saved)
            self.assertIn(f"Saved checkpoint to {hub.url}/{REPO}/latest.pth", done.stdout)
            self.assertNotIn("canary", done.stdout + done.stderr)
            loads = {"hub": {"load_from": "huggingface", "huggingface_repo": REPO, "huggingface_file_path": "latest.pth"},
                     "hf": {"load_from": "url", "url": f"hf://{REPO}/latest.pth"},
                     "s3": {"load_from": "url", "url": "S3://my-bucket/runs/a b/latest.pth", "sha256": sha256(saved)},
                     "web": {"load_from": "url", "url": f"{web.url}/dav/run/00/latest.pth"},
                     "wandb": {"load_from": "wandb", "wandb_file_path": "kept/latest.pth", **wandb_run}}
            web.mistreat = lambda handler, name, number: "Range" not in handler.headers and handler.answer(name, most=30_000)
            for name, load in loads.items():
                with self.subTest(name):
                    self.assertIn("having seen", self.train(self.write(f"{name}.json", name, load=load, epochs=2), env=env).stdout)
                    self.assertEqual(self.content(f"{name}/loaded_checkpoint.pth"), saved)
                    self.assertEqual(checkpoint_content(self.dir / name / "checkpoint.pth", self.dir), expected)
            self.assertGreater(web.ranges, 0)
            self.assertFalse([path for _, path, headers in hub.store.requests if "Authorization" in headers])
            # The run itself goes on from its own folder, and fetches nothing for that.
            steps = dict(hub.steps)
            load = {**loads["hub"], "only_auto_resume": True}
            self.train(self.write(save=save, load=load, epochs=2), env=env)
            self.assertEqual(checkpoint_content(self.dir / "out/checkpoint.pth", self.dir), expected)
            self.assertEqual(hub.steps.get("resolve"), steps.get("resolve"))
            self.assertEqual(hub.file(REPO, "latest.pth"), self.content())
            # A damaged one does not keep it from the whole one at the service.
            shutil.rmtree(self.dir / "out/snapshots")
            (self.dir / "out/checkpoint.pth").write_bytes(self.content()[:1000])
            self.assertIn("having seen", self.train(self.write(save=save, load=load, epochs=3), env=env).stdout)
            self.assertGreater(hub.steps["resolve"], steps["resolve"])
            self.commands(web, env)

    def test_the_run_of_the_wandb_logger_keeps_the_checkpoint_and_gives_it_to_another_machine(self):
        log = {"log_type": "wandb", "wandb_entity": "team", "wandb_project": "project"}
        save = {"save_to": "wandb", "save_latest_to": "latest.pth"}
        load = {"load_from": "wandb", "wandb_file_path": "latest.pth"}
        self.train(self.write("through.json", "through", epochs=2))
        with WandbDouble() as wandb:
            env = self.env(wandb, WANDB_DIR=str(self.dir))
            self.train(self.write(save=save, log=log), env=env)
            kept = wandb.only_run()
            self.assertEqual(kept.files["latest.pth"], self.content())
            again = {**log, "resume": True, "wandb_run_id": kept.name}
            self.train(self.write("moved.json", "moved", save=save, load=load, log=again, epochs=2), env=env)
            self.assertEqual(checkpoint_content(self.dir / "moved/checkpoint.pth", self.dir),
                             checkpoint_content(self.dir / "through/checkpoint.pth", self.dir))
            self.assertEqual(wandb.only_run().files["latest.pth"], self.content("moved/checkpoint.pth"))

    def test_a_file_of_this_machine_is_loaded_by_its_address(self):
        self.train(self.write("through.json", "through", epochs=2))
        self.train(self.write("first.json", "first"))
        done = self.train(self.write(load={"load_from": "url", "url": "file:first/checkpoint.pth"}, epochs=2), env=self.env())
        self.assertIn("having seen", done.stdout)
        self.assertEqual(checkpoint_content(self.dir / "out/checkpoint.pth", self.dir),
                         checkpoint_content(self.dir / "through/checkpoint.pth", self.dir))

    def test_one_of_two_processes_fetches_and_both_read(self):
        self.train(self.write("first.json", "first"))
        (self.dir / "web/first.pth").write_bytes(self.content("first/checkpoint.pth"))
        with Server(self.dir / "web") as web:
            load = {"load_from": "url", "url": f"{web.url}/first.pth"}
            self.assertIn("having seen", self.train(self.write(load=load, epochs=2), "--nproc-per-node", 2, env=self.env()).stdout)
            self.assertEqual(web.counts, {"first.pth": 1})
            done = self.train(self.write("gone.json", "gone", load={**load, "url": f"{web.url}/gone.pth"}), "--nproc-per-node", 2,
                              check=6, env=self.env(), timeout=60)
            self.assertIn("/tracker/load/url: ", done.stderr)
            self.assertEqual(harness.left_by_refused_start(self.dir / "gone"), [])

    def commands(self, web, env):
        """The same fetch for single files."""
        url = f"hf://{REPO}/latest.pth"
        listed = json.loads(run("inspect", url, "--json", cwd=self.dir, env=env, check=0).stdout)
        self.assertEqual(listed["file"], url)
        done = run("convert", f"{web.url}/dav/run/00/latest.pth", "w.safetensors", "--ema", cwd=self.dir, env=env, check=0)
        self.assertIn(f"{web.url}/dav/run/00/latest.pth -> w.safetensors", done.stdout)
        run("convert", f"file:{self.dir}/out/checkpoint.pth", "from_here.safetensors", "--ema", cwd=self.dir, env=env, check=0)
        self.assertIn("none.pth", run("inspect", "file:none.pth", cwd=self.dir, env=env, check=3).stderr)
        heldout = next((self.shards / "heldout").rglob("*.npy"))
        run("sample", "--checkpoint", url, "--image-embeds", heldout, "--out", "drawn", cwd=self.dir, env=env, check=0)
        self.assertTrue((self.dir / "drawn/0000.png").is_file())
        done = run("inspect", f"hf://{REPO}/absent.pth", cwd=self.dir, env=env, check=6)
        self.assertIn("There is no such file or folder in the repository", done.stderr)


class Refusals(Services):
    """A start that cannot load, or may not save, ends with code 6 and leaves nothing."""

    def refuse(self, text, *, code=6, env=None, **config):
        done = self.train(self.write(**config), check=code, env={**self.env(), **(env or {})}, timeout=60)
        self.assertIn(text, done.stderr)
        self.assertEqual(harness.left_by_refused_start(self.dir / "out"), [], "the start left its folder")
        self.assertNotIn("canary", done.stdout + done.stderr)
        return done

    def test_what_the_hub_tells_of_a_file_is_checked_behind_a_redirect_of_its_own_too(self):
        """As of a repository that was renamed."""
        with HubDouble() as hub:
            repo = hub.repos["owner/renamed"] = Repo(private=False)
            repo.files["main"]["f.pth"] = b"whole"
            repo.lfs_paths.add("f.pth")

            def mistreat(handler, step, number):
                if step in ("resolve", "head", "paths") and f"/{REPO}/" in handler.path:
                    return handler.refuse(307, Location=handler.path.replace(REPO, "owner/renamed"))
                return step == "store" and handler.send_range(stored, '"other"')

            hub.mistreat = mistreat
            load = {"load_from": "huggingface", "huggingface_repo": REPO, "huggingface_file_path": "f.pth"}
            for stored, text in ((b"whol", "4 bytes arrived, 5 were announced"),
                                 (b"Whole", f"its SHA-256 is {sha256(b'Whole')}, expected {sha256(b'whole')}"),
                                 (b"whole", "loaded_checkpoint.pth: is not a checkpoint")):
                done = self.refuse(text, code=3, load=load, env=self.env(hub))
                self.assertEqual("announced" in done.stderr or "SHA-256" in done.stderr, stored != b"whole", done.stderr)
            self.assertFalse([path for _, path, headers in hub.store.requests if "Authorization" in headers])

    def test_a_wandb_run_that_cannot_be_read_or_written_ends_the_start(self):
        load = {"load_from": "wandb", "wandb_file_path": "f.pth", "wandb_run_path": "team/project/run1"}
        save = {"save_to": "wandb", "wandb_run_path": "team/project/run1", "save_latest_to": "f.pth"}
        with WandbDouble() as wandb:
            env = self.env(wandb)
            place = f"/tracker/load/wandb_file_path: {wandb.url}/team/project/runs/run1/files/f.pth: "
            self.refuse(place + "no API key was found", load=load, env={**env, "WANDB_API_KEY": ""})
            self.refuse("nothing can be saved there: WANDB_MODE is offline", save=save, env={**env, "WANDB_MODE": "offline"})

    def test_a_token_that_is_refused_ends_the_start(self):
        with HubDouble() as hub, S3Double(self.dir / "bucket", "my-bucket") as store:
            save, env = self.hub_saver(), self.env(hub)
            done = self.refuse("status 401", save=save, env={**env, "HF_TOKEN": "hf_canary"})
            self.assertIn("/tracker/save: ", done.stderr)
            self.assertIn("the token is that of HF_TOKEN", done.stderr)
            self.refuse("no token was found", save=save, env={**env, "HF_TOKEN": ""})
            hub.role = "read"
            self.refuse("may only read", save=save, env=env)
            self.assertEqual(hub.repos, {})
            self.refuse("There is no owner/decoder for this login", env=env,
                        load={"load_from": "huggingface", "huggingface_repo": REPO, "huggingface_file_path": "f.pth"})
            save = {"save_to": "s3", "url": "s3://my-bucket/x", "save_latest_to": "l.pth"}
            done = self.refuse("SignatureDoesNotMatch", save=save, env=store.env(AWS_SECRET_ACCESS_KEY="canary"))
            self.refuse("There is no such bucket", save={**save, "url": "s3://none/x"}, env=store.env())
            self.refuse("cannot be read", code=2, save=self.hub_saver(token_path="none"), env={**env, "HF_TOKEN": ""})


class ModelCards(Services):
    def test_a_repository_gets_a_page_once(self):
        with HubDouble() as hub:
            env = self.env(hub)
            save = [self.hub_saver(model_card=True), self.hub_saver(save_latest_to="model.pth", save_type="model")]
            config = self.write(save=save, epochs=2)
            (self.dir / "out").mkdir()
            (self.dir / "out/model_card.md").write_text("The user's own.")
            self.train(config, env=env)
            self.assertEqual((self.dir / "out/model_card.md").read_text(), "The user's own.")
            self.assertEqual(self.outbox(), [])
            files = hub.repos[REPO].files["main"]
            card = files["README.md"].decode()
            self.assertTrue(card.startswith("---\nlibrary_name: dalle2-train\n"), card)
            self.assertIn(f"dalle2-train sample --checkpoint hf://{REPO}/latest.pth --image-embeds", card)
            self.assertIn('"sample_timesteps"', card)
            self.assertEqual(files["model.pth"], self.content("out/model.pth"))
            summaries = hub.repos[REPO].summaries
            self.assertEqual(summaries.count("Upload model card README.md"), 1)
            # Neither another run nor what somebody has written is touched.
            files["README.md"] = b"My own words."
            self.train(self.write("again.json", "again", save=save, epochs=2), env=env)
            self.assertEqual(files["README.md"], b"My own words.")


class Secrets(Services):
    def test_no_secret_is_in_any_file_line_or_request_to_another_host(self):
        canaries = {"token": TOKEN, "key": SECRET, "password": "canary-of-a-password", "signature": "canary-of-a-signature",
                    "netrc": "canary-of-a-netrc", "wandb": "0123456789abcdef0123456789abcdef01234567"}
        logins = {name: base64.b64encode(f"{user}:{canaries[name]}".encode()).decode()
                  for name, user in (("password", "user"), ("netrc", "somebody"), ("wandb", "api"))}
        (self.dir / "netrc").write_text(f"machine 127.0.0.1 login somebody password {canaries['netrc']}\n")
        (self.dir / "token").write_text(TOKEN + "\n")
        (self.dir / "token").chmod(0o600)
        (self.dir / "web/first.pth").write_bytes(b"")
        (self.dir / "netrc").chmod(0o600)
        (self.dir / "web2").mkdir()
        (self.dir / "web/signed").mkdir()
        with HubDouble() as hub, S3Double(self.dir / "bucket", "my-bucket") as store, Server(self.dir / "web") as web, \
                Server(self.dir / "web2") as web2, WandbDouble() as wandb:
            self.train(self.write("first.json", "first"))
            (self.dir / "web/first.pth").write_bytes(self.content("first/checkpoint.pth"))
            web_login = web.url.replace("://", f"://user:{canaries['password']}@")
            save = [self.hub_saver(token_path=str(self.dir / "token")),
                    {"save_to": "s3", "url": "s3://my-bucket", "save_latest_to": "l.pth"},
                    {"save_to": "url", "url": web_login, "save_latest_to": "l.pth"},
                    {"save_to": "url", "url": web2.url, "save_latest_to": "l.pth"},
                    {"save_to": "wandb", "wandb_run_path": "/".join(WANDB_RUN), "save_latest_to": "l.pth"},
                    {"save_to": "url", "url": f"{web_login}/signed?sig={canaries['signature']}", "save_latest_to": "p.pth"}]
            load = {"load_from": "url", "url": f"{web_login}/first.pth?sig={canaries['signature']}"}
            env = self.env(hub, store, wandb, HF_TOKEN="", NETRC=str(self.dir / "netrc"), WANDB_DIR=str(self.dir))
            log = {"log_type": "wandb", "wandb_entity": "team", "wandb_project": "project", "auto_resume": True}
            config = self.write(save=save, load=load, log=log, epochs=2, pictures=1, upload_deadline_seconds=5)
            done = self.train(config, env=env)
            self.assertEqual(hub.file(REPO, "latest.pth"), self.content())
            self.assertEqual(self.content("web/signed/p.pth"), self.content())
            self.assertEqual(self.content("web2/l.pth"), self.content())
            self.assertIn(logins["netrc"], str(web2.requests))  # it was used where it is for
            printed = [done.stdout, done.stderr]
            # What waits because its service is down says nothing either, and the refusals do not.
            hub.mistreat = store.mistreat = web.mistreat = web2.mistreat = lambda handler, *_: handler.command == "PUT" and handler.refuse(403)
            done = self.train(self.write(save=save, load=load, log=log, epochs=3, upload_deadline_seconds=5), env=env)
            self.assertGreater(len(self.outbox()), 0)
            printed += [done.stdout, done.stderr, run("sync", "out", cwd=self.dir, env=env, check=6).stderr]
            for name, canary in canaries.items():
                self.assertNotIn(canary, "".join(printed), name)
                for path in (self.dir / "out").rglob("*"):
                    if path.is_file():
                        self.assertNotIn(canary.encode(), path.read_bytes(), path)
                        self.assertNotIn(logins.get(name, canary).encode(), path.read_bytes(), path)
            # Each secret goes to the server that it is for. The logger tells its own of the config, of what was printed and of errors.
            self.assertTrue("Error saving checkpoint" in str(wandb.requests))
            servers = {"hub": hub.server.requests, "lfs": hub.store.requests, "store": store.requests, "web": web.requests,
                       "web2": web2.requests, "wandb": wandb.requests}
            servers = {name: str(requests) for name, requests in servers.items()}
            meant_for = {"token": ["hub"], "key": [], "password": ["web"], "netrc": ["web", "web2"], "wandb": ["wandb"]}
            for name, allowed in meant_for.items():
                for server, sent in servers.items():
                    for text in (canaries[name], logins.get(name, canaries[name])):
                        if server not in allowed:
                            self.assertFalse(text in sent, f"{name} went to {server}")


@contextlib.contextmanager
def environment(variables):
    """For the programs that are started within."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


S3_EXCHANGE = """
import hashlib, sys
import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
# The checksum of a whole body: the double knows no chunks with trailers.
s3 = boto3.client("s3", endpoint_url=sys.argv[1], config=Config(s3={"addressing_style": "path", "payload_signing_enabled": True},
                                                                request_checksum_calculation="when_required"))
print(hashlib.sha256(s3.get_object(Bucket="my-bucket", Key="a b/l+1.pth")["Body"].read()).hexdigest())
s3.upload_file(sys.argv[2], "my-bucket", "by/python.pth")
# As a large file is sent: what ours does in uploads of several parts is what this client does.
large = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20, use_threads=False)
s3.upload_file(sys.argv[3], "my-bucket", "large.bin", Config=large)
assert s3.get_object(Bucket="my-bucket", Key="large.bin")["Body"].read() == open(sys.argv[3], "rb").read()
"""
HUB_EXCHANGE = """
import hashlib, sys
from huggingface_hub import HfApi, hf_hub_download
path = hf_hub_download("owner/decoder", "latest.pth", cache_dir=sys.argv[1])
print(hashlib.sha256(open(path, "rb").read()).hexdigest())
HfApi().upload_file(path_or_fileobj=sys.argv[2], path_in_repo="by/python.pth", repo_id="owner/decoder")
"""


@needs_reference
class Reference(Services):
    def test_the_real_hub_client_and_ours_read_each_other_by_the_reference(self):
        with HubDouble() as hub:
            env = self.env(hub)
            self.train(self.write(save=self.hub_saver()), env=env)
            with environment(hub.env(HF_HOME=str(self.dir / "home"))):
                printed = run_reference(HUB_EXCHANGE, self.dir / "cache", self.dir / "out/model.pth", cwd=self.dir)
            self.assertEqual(printed.split()[-1], sha256(self.content()))
            done = run("convert", f"hf://{REPO}/by/python.pth", "python.safetensors", "--overwrite", cwd=self.dir, env=env, check=0)
            ours = run("convert", "out/model.pth", "ours.safetensors", "--overwrite", cwd=self.dir, check=0)
            self.assertEqual(self.content("python.safetensors"), self.content("ours.safetensors"), done.stdout + ours.stdout)

    def test_the_real_s3_client_and_ours_read_each_other_by_the_reference(self):
        with S3Double(self.dir / "bucket", "my-bucket") as store:
            env = self.env(store)
            save = {"save_to": "s3", "url": "s3://my-bucket/a b", "save_latest_to": "l+1.pth"}
            self.train(self.write(save=save), env=env)
            with environment(store.env(AWS_DEFAULT_REGION=REGION)):
                (self.dir / "large").write_bytes(os.urandom(12 << 20))
                printed = run_reference(S3_EXCHANGE, store.url, self.dir / "out/model.pth", self.dir / "large", cwd=self.dir)
            self.assertEqual(printed.split()[-1], sha256(self.content()))
            run("convert", "s3://my-bucket/by/python.pth", "python.safetensors", "--overwrite", cwd=self.dir, env=env, check=0)
            run("convert", "out/model.pth", "ours.safetensors", "--overwrite", cwd=self.dir, check=0)
            self.assertEqual(self.content("python.safetensors"), self.content("ours.safetensors"))
            self.assertEqual(store.faults, [])


if __name__ == "__main__":
    harness.main()
