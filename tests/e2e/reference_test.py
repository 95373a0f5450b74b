# SPDX-License-Identifier: MIT
"""What a run leaves, read by Python: torch, safetensors, and dalle2-pytorch's own config and trainer.
"""
import harness
from harness import EndToEnd, needs_reference, run, run_reference, write_config
from prior_data import DIM, make_embeddings, prior_config

LOAD = """
import torch
from dalle2_pytorch.train_configs import TrainDecoderConfig
from dalle2_pytorch.trainer import DecoderTrainer
from safetensors.torch import load_file

torch.set_num_threads(1)
checkpoint = torch.load("out/checkpoint.pth", weights_only=True)
config = TrainDecoderConfig(**checkpoint["config"])
decoder, train = config.decoder.create(), config.train
mask = train.unet_training_mask or [True] * len(decoder.unets)
for i, trained in enumerate(mask):  # as its own script leaves them out
    if not trained:
        decoder.unets[i] = torch.nn.Identity()
trainer = DecoderTrainer(decoder, lr=train.lr, wd=train.wd, warmup_steps=train.warmup_steps, max_grad_norm=train.max_grad_norm,
                         use_ema=train.use_ema, ema_beta=train.ema_beta)
trainer.load_state_dict(checkpoint, strict=True)
trainer.save("again.pth", **{k: checkpoint[k] for k in ("epoch", "sample", "next_task", "validation_losses",
                                                        "samples_seen", "config")})
model = torch.load("out/model.pth", weights_only=True)
decoder.load_state_dict(model["model"], strict=True)
for i, trained in enumerate(mask):
    for name, average in trainer.ema_unets[i].ema_model.state_dict().items() if trained else []:
        assert torch.equal(model["model"][f"unets.{i}.{name}"], average), name

whole = load_file("whole.safetensors")
assert torch.equal(whole["model.unets.%d.to_out.weight" % mask.index(True)],
                   checkpoint["model"]["unets.%d.to_out.weight" % mask.index(True)])
averages = load_file("averages.safetensors")
assert set(averages) == set(model["model"])
assert all(torch.equal(averages[k], model["model"][k]) for k in averages)
print("steps", trainer.steps.tolist())
"""

BUILD = """
import torch
from dalle2_pytorch.train_configs import DecoderConfig, DiffusionPriorConfig

for path, kind, section in (("decoder.pth", "decoder", DecoderConfig), ("prior.pth", "prior", DiffusionPriorConfig),
                            ("prior/model.pth", "prior", DiffusionPriorConfig)):
    saved = torch.load(path, weights_only=True)
    print(path, section(**saved["config"][kind]).create().load_state_dict(saved["model"], strict=True))
"""


@needs_reference
class Reference(EndToEnd):
    def check(self, **sections):
        config = self.config(**sections)
        self.train(config)
        run("convert", "out/checkpoint.pth", "whole.safetensors", cwd=self.dir, check=0)
        run("convert", "out/checkpoint.pth", "averages.safetensors", "--ema", cwd=self.dir, check=0)
        self.assertRegex(run_reference(LOAD, cwd=self.dir), r"(?m)^steps \[\d+(, \d+)*\]$")
        # what the reference then saves, we take up, and train on
        for name in ("latest.pth", "checkpoint.pth"):
            (self.dir / "out" / name).write_bytes((self.dir / "again.pth").read_bytes())
        self.assertIn("having seen", self.train(config, "--set", "/train/epochs=2").stdout)

    def test_the_references_trainer_takes_up_a_run_and_gives_it_back(self):
        self.check()

    def test_the_configs_of_convert_and_of_a_prior_build_their_models(self):
        make_embeddings(self.dir)
        network = {"dim": DIM, "depth": 1, "dim_head": 8, "heads": 2}
        prior = write_config(self.dir / "prior.json", prior_config(self.dir, "prior", prior={"net": network}, train={"epochs": 1}))
        decoder = self.config()
        for config, model, out in ((decoder, "out/model.pth", "decoder.pth"), (prior, "prior/model.pth", "prior.pth")):
            self.train(config)
            run("convert", model, out, "--config", config, cwd=self.dir, check=0)
        self.assertEqual(run_reference(BUILD, cwd=self.dir).count("All keys matched"), 3)

    def test_a_cascade_of_which_one_unet_was_trained_too(self):
        self.check(decoder=harness.CASCADE, train={"unet_training_mask": [False, True]})


if __name__ == "__main__":
    harness.main()
