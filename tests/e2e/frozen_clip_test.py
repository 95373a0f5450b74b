# SPDX-License-Identifier: MIT
"""Priors and decoders whose embeddings a frozen CLIP makes while they train: they learn as from embeddings that were made before."""
import json
import pathlib
import shutil
import tarfile

import harness
from clip_runs import WIDTH, clip_config
from harness import EndToEnd, checkpoint_content, main, needs_reference, run, run_reference

PRIOR_LOSS = "tracking/training-l2"


def captions_of(folder):
    """Of the samples of a folder of shards, in their order."""
    captions = []
    for shard in sorted(pathlib.Path(folder).glob("*.tar")):
        with tarfile.open(shard) as tar:
            captions += [tar.extractfile(member).read().decode() for member in tar.getmembers() if member.name.endswith(".txt")]
    return captions


class ClipRuns(EndToEnd):
    """Runs on the demo shards with a CLIP, and on the embeddings that it made of them before."""
    width = text_width = WIDTH  # of embeddings, of text encodings

    @classmethod
    def embed(cls, clip):
        """Of the whole set, in the folder of `clip`."""
        cls.clip = clip
        run("shards", "embed", cls.shards, "--clip", clip, "--text-encodings", "--out", "embedded", cwd=clip.parent, check=0)
        cls.embedded = clip.parent / "embedded"
        cls.captions = clip.parent / "captions.jsonl"
        captions = captions_of(cls.embedded)
        cls.captions.write_text("".join(json.dumps({"caption": text}) + "\n" for text in captions))
        cls.captions.with_suffix(".txt").write_text("".join(text + "\n" for text in captions))

    def clip_section(self):
        return {"model": str(self.clip)}

    def prior(self, out, clip=True, prior=None, data=None, train=None, tracker=None):
        """Of captions, or of the embeddings that were made of them before."""
        sources = {"image_url": f"{self.embedded}/img_emb"}
        if clip:
            sources["meta_url"] = str(self.captions)
        else:
            sources.update(text_url=f"{self.embedded}/text_emb", text_encodings_url=f"{self.embedded}/text_encodings")
        sources.update(data or {})
        config = {
            "prior": {"net": {"dim": self.width, "depth": 1, "dim_head": 8, "heads": 2, "max_text_len": 20}, "image_embed_dim": self.width,
                      "timesteps": 20, "sample_timesteps": 4, "cond_drop_prob": 0.1,
                      **({"clip": self.clip_section()} if clip else {}), **(prior or {})},
            "data": {"batch_size": 8, "splits": {"train": 0.8, "val": 0.1, "test": 0.1},
                     **{key: value for key, value in sources.items() if value is not None}},
            "train": {"epochs": 2, "lr": 1e-2, "device": "cpu", "eval_timesteps": [4], "log_every_n_updates": 1, "ema_update_after_step": 0,
                      "ema_update_every": 1, **(train or {})},
            "tracker": {**harness.tracker(out), **(tracker or {})}}
        return harness.write_config(self.dir / f"{out}.json", config)

    def decoder(self, out, clip=True, unet=None, data=None, train=None, evaluate=None):
        sources = {"img_embeddings_url": None}
        if not clip:
            sources.update(webdataset_base_url=f"{self.embedded}/{{}}.tar", embeddings_in_tar=True)
        config = harness.tiny_config(self.shards, out, data={**sources, **(data or {})}, train={"log_every_n_updates": 1, **(train or {})},
                                     evaluate=evaluate or {})
        config["decoder"]["unets"][0].update({"image_embed_dim": self.width, "cond_on_text_encodings": True, "text_embed_dim": self.text_width,
                                              **(unet or {})})
        if clip:
            config["decoder"]["clip"] = self.clip_section()
        return harness.write_config(self.dir / f"{out}.json", config)

    def check_near(self, found, expected, delta=2e-4):
        self.assertEqual(len(found), len(expected))
        self.assertGreater(len(found), 5)
        for a, b in zip(found, expected):
            self.assertAlmostEqual(a, b, delta=delta * max(1, abs(b)))

    def refused(self, code, expected, config, *more):
        self.assertIn(expected, " ".join(self.train(config, *more, check=code).stderr.split()))


class FrozenClip(ClipRuns):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        made = cls.base / "made"
        made.mkdir()
        run("--config", harness.write_config(made / "clip.json", clip_config(cls.shards, "clip")), cwd=made, check=0)
        shutil.copy(made / "clip/model.pth", made / "clip.pth")
        cls.embed(made / "clip.pth")

    # Priors

    def test_a_prior_learns_from_captions_as_from_their_embeddings(self):
        self.train(self.prior("before", clip=False))
        expected = self.logged("before", PRIOR_LOSS)
        for out, data in (("json", {}), ("text", {"meta_url": str(self.captions.with_suffix(".txt"))}),
                          ("shards", {"meta_url": str(self.embedded)}),
                          ("pictures", {"meta_url": str(self.embedded), "image_url": None})):
            with self.subTest(out):
                self.assertIn("clip.pth: embeddings of 16 values", self.train(self.prior(out, data=data)).stdout)
                self.check_near(self.logged(out, PRIOR_LOSS), expected)
                for key in ("metrics/ema-validation/l2-loss", "metrics/ema-validation/similarity with text [steps=4]",
                            "metrics/ema-validation/baseline similarity [steps=4]"):
                    a, b = self.logged(out, key)[-1], self.logged("before", key)[-1]
                    self.assertAlmostEqual(a, b, delta=5e-3 * max(1, abs(b)), msg=key)
        self.assertEqual(self.logged("json", PRIOR_LOSS), self.logged("text", PRIOR_LOSS))
        # The command gives what the run logged.
        found = json.loads(run("evaluate", "--config", "json.json", "--checkpoint", "json/latest.pth", cwd=self.dir, check=0).stdout)
        key = "similarity with text [steps=4]"
        self.assertAlmostEqual(found[key], self.logged("json", "metrics/ema-validation/" + key)[-1], places=5)

    def test_the_clip_of_a_prior_stays_as_it_was(self):
        self.train(self.prior("whole"))
        whole = checkpoint_content(self.dir / "whole/checkpoint.pth", self.dir)[0]
        weights, _ = checkpoint_content(self.clip, self.dir)
        self.assertGreater(len(weights), 20)
        for name, value in weights.items():
            self.assertEqual(whole["model.clip.clip." + name], value, name)
        # The optimizer's states are numbered behind the CLIP's matrices, as the reference's are.
        matrices = sum(len(entry["shape"]) >= 2 for entry in harness.inspect(self.clip, self.dir).values() if entry.get("shape"))
        numbers = [int(name.split(".")[2]) for name in whole if name.startswith("optimizer.state.")]
        self.assertEqual(min(numbers), matrices)

    def test_ranks_share_the_captions(self):
        self.train(self.prior("alone", train={"grad_accum_every": 2}, data={"meta_url": str(self.embedded), "image_url": None}))
        self.train(self.prior("shared", data={"meta_url": str(self.embedded), "image_url": None}), "--nproc-per-node", 2)
        self.check_near(self.logged("shared", PRIOR_LOSS), self.logged("alone", PRIOR_LOSS), delta=1e-3)

    def test_what_such_a_prior_draws_needs_no_clip(self):
        clip = self.dir / "clip.pth"
        shutil.copy(self.clip, clip)
        self.train(self.prior("out", prior={"clip": {"model": "clip.pth"}}))
        clip.unlink()
        for name in ("latest.pth", "model.pth"):
            run("sample", "--checkpoint", f"out/{name}", "--text-embeds", self.embedded / "text_emb/000000.npy", "--text-encodings",
                self.embedded / "text_encodings/000000.npy", "--out", name + ".drawn", cwd=self.dir, check=0)
            self.assertEqual(harness.read_npy(self.dir / f"{name}.drawn/image_embeds.npy")[0], (6, WIDTH))
        run("fsck", "out", cwd=self.dir, check=0)
        run("convert", "out/latest.pth", "out.safetensors", cwd=self.dir, check=0)
        self.refused(2, "/prior/clip/model: clip.pth: no such file", self.prior("out", prior={"clip": {"model": "clip.pth"}}))
        # A place is no other CLIP, another file is.
        self.train(self.prior("out", train={"epochs": 3}))
        other = self.dir / "other"
        other.mkdir()
        run("--config", harness.write_config(other / "clip.json", clip_config(self.shards, "clip", train={"epochs": 1})), cwd=other, check=0)
        self.refused(2, "/prior/clip/sha256: the checkpoint has",
                     self.prior("out", prior={"clip": {"model": "other/clip/model.pth"}}, train={"epochs": 4}))

    def test_wrong_input_of_a_prior_is_named(self):
        def refused(code, expected, **sections):
            self.refuse_start(self.prior("none", **sections), "none", code, expected)
        self.train(self.prior("dry"), "--dry-run")
        (self.dir / "few.txt").write_text("a\nb\n")
        refused(3, "/data/meta_url: 'few.txt' has 2 rows and /data/image_url 96", data={"meta_url": "few.txt"})
        refused(3, "captions.jsonl: not a safetensors file", prior={"clip": {"model": str(self.captions)}})
        net = {"dim": 8, "depth": 1, "dim_head": 8, "heads": 2}
        refused(3, f"/prior: expected embeddings of {WIDTH} values, as /prior/clip", prior={"net": net, "image_embed_dim": 8})
        # A row without caption is left out.
        captions = captions_of(self.embedded)
        (self.dir / "hole.txt").write_text("".join(text + "\n" for text in ["", *captions[1:]]))
        done = self.train(self.prior("hole", data={"meta_url": "hole.txt"}, train={"epochs": 1}))
        self.assertIn("left out (sample without caption): row 0", done.stdout + done.stderr)

    ADAPTER = """
import torch
from dalle2_pytorch.dalle2_pytorch import BaseClipAdapter, DiffusionPrior, DiffusionPriorNetwork
from dalle2_pytorch.trainer import DiffusionPriorTrainer
from dalle2_pytorch.train_configs import DecoderConfig

class Adapter(BaseClipAdapter):  # as those of the reference, around any model with the names of a CLIP's parameters
    dim_latent, image_size, image_channels, max_text_len = 16, 16, 3, 20

    def __init__(self, weights):
        model = torch.nn.Module()
        for name, tensor in weights.items():
            at = model
            *path, last = name.split('.')
            for part in path:
                if not hasattr(at, part):
                    at.add_module(part, torch.nn.Module())
                at = getattr(at, part)
            at.register_parameter(last, torch.nn.Parameter(torch.zeros_like(tensor)))
        super().__init__(model)

def adapter_of(saved):
    return Adapter({name[len('clip.clip.'):]: tensor for name, tensor in saved['model'].items() if name.startswith('clip.')})

"""

    @needs_reference
    def test_checkpoints_are_loaded_by_the_reference(self):
        self.train(self.prior("out", train={"epochs": 1}))
        done = run_reference(self.ADAPTER + f"""
saved = torch.load('out/latest.pth', weights_only=True)
net = DiffusionPriorNetwork(dim={WIDTH}, depth=1, dim_head=8, heads=2, max_text_len=20)
prior = DiffusionPrior(net, clip=adapter_of(saved), image_embed_dim={WIDTH}, timesteps=20, cond_drop_prob=0.1)
trainer = DiffusionPriorTrainer(prior, lr=1e-2)
trainer.load(saved)
states = trainer.optimizer.state
assert all(states[p]['exp_avg'].shape == p.shape for p in prior.net.parameters() if p in states)
print('loaded', trainer.step.item(), sum(p in states for p in prior.net.parameters()) > 10)
""", cwd=self.dir)
        self.assertEqual(done.splitlines()[-1], "loaded 10 True")
        self.train(self.decoder("decoder"))
        done = run_reference(self.ADAPTER + """
saved = torch.load('decoder/latest.pth', weights_only=True)
config = saved['config']['decoder']
del config['clip']
decoder = DecoderConfig(**config).create()
decoder.clip = adapter_of(saved)
print('loaded', decoder.load_state_dict(saved['model']))
""", cwd=self.dir)
        self.assertIn("All keys matched", done.splitlines()[-1])

    # Decoders

    def test_a_decoder_learns_from_pictures_and_captions_as_from_their_embeddings(self):
        self.train(self.decoder("before", clip=False, train={"epochs": 2}))
        done = self.train(self.decoder("flying", train={"epochs": 2}))
        self.assertIn("image embeddings by /decoder/clip", done.stdout)
        self.assertIn("text encodings by /decoder/clip", done.stdout)
        for key in ("Unet 0 Training Loss", "Unet 0 Validation Loss"):
            found, expected = self.logged("flying", key), self.logged("before", key)
            self.assertEqual(len(found), len(expected), key)
            self.assertGreater(len(found), 1)
            for a, b in zip(found, expected):
                self.assertAlmostEqual(a, b, delta=1e-3 * max(1, b), msg=key)
        # What it draws needs no CLIP.
        run("sample", "--checkpoint", "flying/model.pth", "--image-embeds", self.embedded / "img_emb/000000.npy", "--text-encodings",
            self.embedded / "text_encodings/000000.npy", "--out", "drawn", cwd=self.dir, check=0)
        self.assertEqual(harness.read_npy(self.dir / "drawn/samples.npy")[0], (6, 3, 16, 16))

    def test_the_clip_score_is_logged_and_printed(self):
        score = {"n_evaluation_samples": 12, "clip_score": {}}
        self.train(self.decoder("own", evaluate=score))
        logged = self.logged("own", "CLIP_score")
        self.assertEqual(len(logged), 1)
        self.assertTrue(0 <= logged[0] <= 100)
        self.assertIn("CLIP ", self.logged("own", "Evaluation")[0])
        arguments = ["evaluate", "--config", "own.json", "--checkpoint", "own/latest.pth"]
        found = json.loads(run(*arguments, cwd=self.dir, check=0).stdout)
        self.assertAlmostEqual(found["CLIP_score"], logged[0], places=3)
        shared = json.loads(run(*arguments, "--nproc-per-node", 2, cwd=self.dir, check=0).stdout)
        self.assertAlmostEqual(shared["CLIP_score"], found["CLIP_score"], places=3)
        # By a CLIP of its own, of a decoder that has none.
        self.train(self.decoder("before", clip=False))
        given = json.dumps({"clip": {"model": str(self.clip)}})
        found = json.loads(run("evaluate", "--config", "before.json", "--checkpoint", "before/latest.pth", "--set",
                               f"/evaluate/clip_score={given}", "--set", "/evaluate/n_evaluation_samples=4", cwd=self.dir, check=0).stdout)
        self.assertEqual(found["images"], 4)
        self.assertIn("CLIP_score", found)

    def test_wrong_input_of_a_decoder_is_named(self):
        def refused(code, expected, **sections):
            self.refuse_start(self.decoder("none", **sections), "none", code, expected)
        self.train(self.decoder("dry"), "--dry-run")
        refused(3, f"/decoder/unets/0/image_embed_dim: expected {WIDTH}, the width of the embeddings of /decoder/clip",
                unet={"image_embed_dim": 8})
        refused(3, f"/decoder/unets/0/text_embed_dim: expected {WIDTH}, the width of the text encodings", unet={"text_embed_dim": 8})
        refused(3, "/data/preprocessing: expected square pictures of at least 16 x 16 pixels",
                data={"preprocessing": {"Resize": {"size": 8}, "ToTensor": True}})


class XClip(ClipRuns):
    """With a CLIP of x-clip, whose file does not say all of it, from the folder that tests/parity/make_x_clip.py wrote."""
    width = text_width = 6

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.files = harness.ROOT / "tests/parity/fixtures/x_clip/file"
        made = cls.base / "made"
        shutil.copytree(cls.files, made)
        cls.embed(made / "x_clip.pt")
        (cls.base / "moved").mkdir()  # away from the arguments that --clip finds beside it
        cls.clip = shutil.copy(cls.clip, cls.base / "moved")

    def arguments(self):
        """Without the network for masked language modelling, whose weights we leave out: its token is one of the others."""
        config = json.loads((self.files / "x_clip_config.json").read_text())
        return {**config, "use_mlm": False, "num_text_tokens": config["num_text_tokens"] + 1}

    def clip_section(self):
        return {"make": "x-clip", "model": str(self.clip), "base_model_kwargs": self.arguments()}

    def refused_clip(self, code, expected, **clip):
        config = json.loads(pathlib.Path(self.decoder("none")).read_text())
        config["decoder"]["clip"].update(clip)
        self.refused(code, expected, harness.write_config(self.dir / "none.json", config), "--dry-run")

    def test_runs_learn_with_it_and_wrong_input_is_named(self):
        self.train(self.decoder("drawn"))
        self.train(self.prior("prior", train={"epochs": 1}))
        refused = self.refused_clip
        refused(2, "/decoder/clip/base_model_kwargs/heads: no such key; known are: dim_text", base_model_kwargs={"heads": 1})
        refused(3, "to_text_latent.weight: expected [8, 6], got [6, 6]",
                base_model_kwargs={**self.arguments(), "dim_latent": 8})
        refused(2, "x_clip.pt: a CLIP of x-clip, whose weights do not say all", make="openai", base_model_kwargs=None)

    @needs_reference
    def test_checkpoints_are_loaded_by_the_reference(self):
        """With the same weights."""
        self.train(self.decoder("out"))
        done = run_reference(f"""
import torch
from dalle2_pytorch.train_configs import DecoderConfig
saved = torch.load('out/latest.pth', weights_only=True)
model = DecoderConfig(**saved['config']['decoder']).create()
print('loaded', model.load_state_dict(saved['model']))
model.eval()
tokens = torch.zeros(1, 12, dtype=torch.long)
own = torch.load({str(self.clip)!r}, weights_only=True)['state_dict']
for name, value in model.clip.clip.state_dict().items():
    assert torch.equal(value, own[name]), name
print('embeds', model.clip.embed_text(tokens).text_embed.shape[1])
""", cwd=self.dir)
        self.assertIn("All keys matched", done)
        self.assertEqual(done.splitlines()[-1], f"embeds {self.width}")


if __name__ == "__main__":
    main()
