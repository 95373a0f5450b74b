#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CoCas of coca-pytorch of random configurations, with a SimpleViT of vit-pytorch: what dalle2-pytorch's adapter makes of
pictures and texts, and the state dict of one, as a file.

    python tests/parity/make_coca.py --out DIR [--seed N] [--cases N]

One safetensors file a case, in DIR/coca. Weights are a function of the parameter's name (waves.fill), so they are not stored;
nor are pictures, which are waves. `noise` is how far each number moves when every weight moves by one rounding of float32.
`similarity` is the cosine of latents that CoCa's loss is made of. DIR/coca/file has a small CoCa, as torch.save writes it and
as safetensors' save_model does.
"""
import json
import random
import warnings

warnings.filterwarnings("ignore")

import torch
from coca_pytorch.coca_pytorch import CoCa
from dalle2_pytorch.dalle2_pytorch import CoCaAdapter
from safetensors.torch import save_model
from vit_pytorch import simple_vit, simple_vit_with_patch_dropout
from vit_pytorch.extractor import Extractor

from adapter_cases import MERGES, case_of, defaults_of, write_file
from case_files import folder_and_options, write_cases
from waves import fill


def draw_config(r, number):
    """In the form of a config: with the arguments of the image encoder, and with `max_text_len`, which the adapter gets."""
    patch, dim = r.choice([2, 3, 4]), r.choice([6, 8, 12])
    encoder = dict(image_size=patch * r.choice([1, 2, 3]), patch_size=patch, num_classes=r.choice([1, 5]), dim=r.choice([8, 12, 20]),
                   depth=r.choice([1, 2, 3]), heads=r.choice([1, 2, 3]), mlp_dim=r.choice([7, 16]), dim_head=r.choice([3, 4, 8]))
    if number % 2:
        encoder["patch_dropout"] = r.choice([0.0, 0.5, 0.9])
    if number % 5 == 4:
        dim = encoder["dim"]
    config = dict(dim=dim, num_tokens=r.choice([30, 50]), unimodal_depth=r.choice([1, 2, 3]), multimodal_depth=r.choice([0, 1, 2]),
                  num_img_queries=r.choice([0, 1, 5]), dim_head=r.choice([2, 4, 6, 10]), heads=r.choice([1, 2, 3]), ff_mult=r.choice([1, 2, 4]),
                  pad_id=r.choice([0, 0, 3, -1]), caption_loss_weight=r.choice([1.0, 0.5]), img_encoder=encoder, max_text_len=r.choice([5, 8, 12]))
    if dim != encoder["dim"] or r.random() < 0.5:
        config["image_dim"] = encoder["dim"]
    if r.random() < 0.6:
        config["dim_latents"] = r.choice([4, 6, 16])
    return config


def build(config):
    """A CoCa of it, in eval mode, and what makes its adapter."""
    arguments = dict(config)
    encoder, text_len = arguments.pop("img_encoder"), arguments.pop("max_text_len")
    package = simple_vit_with_patch_dropout if "patch_dropout" in encoder else simple_vit
    vit = package.SimpleViT(**encoder)
    model = CoCa(img_encoder=Extractor(vit, return_embeddings_only=True, detach=False), **arguments)
    overrides = dict(image_size=encoder["image_size"], image_channels=3, max_text_len=text_len)
    return model.eval(), lambda coca: CoCaAdapter(coca, **overrides)


def names_of(model):
    return list(model.state_dict())


def similarity(model, image_embeds, text_embeds):
    return (model.img_to_latents(image_embeds) * model.text_to_latents(text_embeds)).sum(-1)


def make_case(number):
    r = random.Random(number)
    config = draw_config(r, number)
    model, adapter_of = build(config)
    fill(model)
    return case_of(r, number, model, adapter_of, config["num_tokens"], dict(config=config, names=names_of(model)), similarity)


def build_for_file(token_count):
    """Its untrained biases are drawn, so that none is lost unseen."""
    config = dict(dim=6, num_tokens=token_count, unimodal_depth=2, multimodal_depth=1, image_dim=8, num_img_queries=2, dim_head=4, heads=2,
                  max_text_len=12, img_encoder=dict(image_size=8, patch_size=4, num_classes=3, dim=8, depth=1, heads=2, mlp_dim=8, dim_head=3))
    model, adapter_of = build(config)
    for name, buffer in model.named_buffers():
        if name.endswith(".beta"):
            buffer.normal_(std=0.1)
    return config, model, adapter_of


def main():
    folder, arguments = folder_and_options("coca", __doc__, cases=20)
    write_cases(folder, make_case, arguments.seed, arguments.cases)
    model = write_file(folder / "file", "coca", arguments.seed, build_for_file, names_of)
    saved = folder / "file" / "coca.safetensors"
    save_model(model, saved, metadata={"clip_merges": MERGES})
    saved.chmod(0o644)
    objects = dict(coca=defaults_of(CoCa.__init__, required=0), img_encoder=defaults_of(simple_vit_with_patch_dropout.SimpleViT.__init__, required=0))
    (folder / "defaults.json").write_text(json.dumps(objects, indent=1) + "\n")


if __name__ == "__main__":
    main()
