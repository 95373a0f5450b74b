#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training steps of three diffusion priors, ours against dalle2-pytorch's DiffusionPriorTrainer, in turns on one machine.

    scripts/bench.sh prior [--only small readme example] [--precision no bf16] [--minutes 25] [--threads 1] [--compile]
    scripts/bench.sh prior --account example [--precision no]     where the time of our step goes, and the least it could take

The configs are tests/bench/prior/*.json: a small one without text encodings, that of the reference's README, and that of its example
of full size with dropout. A step is forward, backward, clipping, AdamW and average, on embeddings in memory on both sides. All else
is as in decoder_steps.py, whose help explains the lines.
"""
import sys

from decoder_steps import Kind, main

TRAINED = ("lr", "wd", "max_grad_norm", "ema_beta", "ema_update_after_step", "ema_update_every")


class PriorReference:
    """The reference's trainer and a batch."""

    def __init__(self, config, precision, compiled):
        import torch
        from accelerate import Accelerator
        from dalle2_pytorch import DiffusionPrior, DiffusionPriorNetwork, DiffusionPriorTrainer
        torch.manual_seed(0)
        options = dict(config["prior"])
        network = DiffusionPriorNetwork(**options.pop("net"))
        if compiled:
            network.compile()
        accelerator = Accelerator(cpu=True, mixed_precision="bf16" if precision == "bf16" else "no")
        self.trainer = DiffusionPriorTrainer(DiffusionPrior(network, **options), accelerator=accelerator,
                                             **{name: config["train"][name] for name in TRAINED})
        batch, width = config["data"]["batch_size"], options["image_embed_dim"]
        self.images = torch.randn(batch, width)
        self.inputs = {"text_embed": torch.randn(batch, width)}
        if options["condition_on_text_encodings"]:
            self.inputs["text_encodings"] = torch.randn(batch, config["prior"]["net"]["max_text_len"], width)

    def step(self):
        self.trainer(image_embed=self.images.clone(), **self.inputs)  # which it scales in place
        self.trainer.update()


PRIOR = Kind(__file__, __doc__, "prior", ("small", "readme", "example"), PriorReference, "prior.step", "prior.step.memory")

if __name__ == "__main__":
    sys.exit(main(PRIOR))
