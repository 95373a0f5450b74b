#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CLIPs of x-clip of random configurations: what dalle2-pytorch's adapter makes of pictures and texts, and the state dict
of one, as a file.

    python tests/parity/make_x_clip.py --out DIR [--seed N] [--cases N]

One safetensors file a case, in DIR/x_clip. Weights are a function of the parameter's name (waves.fill), so they are not
stored; nor are pictures, which are waves. `noise` is how far each number moves when every weight moves by one rounding of
float32. DIR/x_clip/file has a small CLIP with its networks for training, as torch.save writes it.
"""
import copy
import inspect
import json
import random
import warnings

warnings.filterwarnings("ignore")

import torch
from dalle2_pytorch.dalle2_pytorch import XClipAdapter
from dalle2_pytorch.tokenizer import SimpleTokenizer
from x_clip import CLIP
from x_clip.mlm import MLM

from case_files import folder_and_options, write_case, write_cases
from make_unet import rounding_noise
from waves import fill, wave

BATCH, EXTRA_PIXELS = 3, 5
TEXTS = ["a red circle", "Two  GREEN squares!", "caf\u00e9 &amp; th\u00e9, 1234", "", "of the " * 300]
MERGES = "#version: 0.2\nt h\nth e</w>\no f</w>"


def draw_config(r, number):
    """The arguments that matter to the adapter, those that do not among them."""
    patch = r.choice([2, 3, 4])
    rotary = number % 2 == 1
    config = dict(
        dim_text=r.choice([8, 12, 16]), dim_image=r.choice([8, 12, 20]), dim_latent=r.choice([6, 8, 16]),
        num_text_tokens=r.choice([30, 50]), text_enc_depth=r.choice([1, 2, 3]), text_seq_len=r.choice([5, 8, 12]),
        text_heads=r.choice([1, 2, 3]), text_dim_head=r.choice([4, 6, 40] if rotary else [3, 4, 8]), text_rotary_pos_emb=rotary,
        text_encode_without_mask=r.random() < 0.5, visual_enc_depth=r.choice([1, 2, 3]), visual_heads=r.choice([1, 2, 3]),
        visual_dim_head=r.choice([3, 4, 8]), visual_image_size=patch * r.choice([1, 2, 3]), visual_patch_size=patch,
        visual_patch_dropout=r.choice([0.0, 0.5, 0.9]), extra_latent_projection=r.random() < 0.5,
        decoupled_contrastive_learning=r.random() < 0.5, text_pad_id=r.choice([0, 3]), use_mlm=number % 4 >= 2)
    all_tokens = r.random() < 0.3
    return config | dict(use_all_token_embeds=all_tokens, text_has_cls_token=r.random() < 0.5 or not all_tokens,
                         visual_has_cls_token=r.random() < 0.5)


def draw_tokens(r, text_len, token_count):
    """Texts of all lengths, with a token 0 amid some, and one token more than the CLIP takes."""
    rows = []
    for _ in range(BATCH):
        length = r.randrange(text_len + 2)
        row = [r.choice([0, r.randrange(1, token_count)]) for _ in range(length)]
        rows.append(row + [0] * (text_len + 1 - length))
    return torch.tensor(rows)


def observe(adapter, images, tokens):
    text = adapter.embed_text(tokens)
    return dict(image_embed=adapter.embed_image(images).image_embed, text_embed=text.text_embed, text_encodings=text.text_encodings)


def pictures(side, phase):
    return wave((BATCH, 3, side, side), 0.61, phase, 0.5, 0.5)


def names_of(model):
    """In their order, without those of networks for training."""
    return [name for name in model.state_dict() if not name.startswith(("mlm.", "visual_ssl."))]


def make_case(number):
    r = random.Random(number)
    config = draw_config(r, number)
    model = CLIP(**config).eval()
    fill(model)
    adapter = XClipAdapter(model)
    side = adapter.image_size + r.choice([0, EXTRA_PIXELS])
    images = pictures(side, number % 97)
    tokens = draw_tokens(r, adapter.max_text_len, config["num_text_tokens"])
    one = observe(adapter, images, tokens)
    noise = rounding_noise(one, copy.deepcopy(model), lambda nudged: observe(XClipAdapter(nudged), images, tokens), number)
    meta = dict(config=config, names=names_of(model), phase=number % 97, side=side, noise=noise)
    return {name: value.numpy() for name, value in (dict(tokens=tokens) | one).items()}, meta


def write_file(folder, seed):
    """A CLIP of random weights and of a vocabulary of its own as torch.save writes it, with what only training needs, with the
    arguments beside it, texts and their tokens."""
    folder.mkdir(exist_ok=True)
    (folder / "merges.txt").write_text(MERGES)
    tokenizer = SimpleTokenizer(folder / "merges.txt")
    torch.manual_seed(seed)
    config = dict(dim_text=6, dim_image=8, dim_latent=6, num_text_tokens=len(tokenizer.encoder), text_enc_depth=1, text_seq_len=12,
                  text_heads=1, text_dim_head=4, text_rotary_pos_emb=True, visual_enc_depth=1, visual_heads=2, visual_dim_head=3,
                  visual_image_size=8, visual_patch_size=4, use_mlm=True, mlm_mask_prob=0.2, extra_latent_projection=True)
    model = CLIP(**config).eval()
    torch.save({"state_dict": model.state_dict(), "clip_merges": MERGES}, folder / "x_clip.pt")
    (folder / "x_clip_config.json").write_text(json.dumps(config, indent=1) + "\n")
    adapter = XClipAdapter(model)
    tokens = tokenizer.tokenize(TEXTS, truncate_text=True)[:, :adapter.max_text_len]
    found = observe(adapter, pictures(adapter.image_size, seed % 97), tokens)
    write_case(folder, "expected", dict(tokens=tokens) | found, dict(texts=TEXTS, phase=seed % 97, names=names_of(model)))


def defaults_of(function, without=()):
    """Of the arguments that a config can give, and that have a default."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()
            if name not in ("self", *without) and parameter.default is not inspect.Parameter.empty}


def defaults():
    found = defaults_of(CLIP.__init__, without=("image_encoder", "text_encoder", "visual_ssl", "kwargs"))
    return found | {f"mlm_{name}": value for name, value in defaults_of(MLM.__init__).items()}


def main():
    folder, arguments = folder_and_options("x_clip", __doc__, cases=8)
    write_cases(folder, make_case, arguments)
    write_file(folder / "file", arguments.seed)
    (folder / "defaults.json").write_text(json.dumps(defaults(), indent=1) + "\n")


if __name__ == "__main__":
    main()
