# SPDX-License-Identifier: MIT
"""What the makers of cases for CLIPs of x-clip and coca-pytorch share: texts and pictures, and what dalle2-pytorch's adapter
makes of them."""
import copy
import inspect
import json

import torch
from dalle2_pytorch.tokenizer import SimpleTokenizer

from case_files import write_case
from make_unet import rounding_noise
from waves import wave

BATCH, EXTRA_PIXELS = 3, 5
TEXTS = ["a red circle", "Two  GREEN squares!", "caf\u00e9 &amp; th\u00e9, 1234", "", "of the " * 300]
MERGES = "#version: 0.2\nt h\nth e</w>\no f</w>"


def draw_tokens(r, text_len, token_count):
    """Texts of all lengths, with a token 0 amid some, and one token more than the CLIP takes."""
    rows = []
    for _ in range(BATCH):
        length = r.randrange(text_len + 2)
        row = [r.choice([0, r.randrange(1, token_count)]) for _ in range(length)]
        rows.append(row + [0] * (text_len + 1 - length))
    return torch.tensor(rows)


def observe(adapter, images, tokens, similarity=None):
    text, image_embed = adapter.embed_text(tokens), adapter.embed_image(images).image_embed
    found = dict(image_embed=image_embed, text_embed=text.text_embed, text_encodings=text.text_encodings)
    return found | (dict(similarity=similarity(adapter.clip, image_embed, text.text_embed).detach()) if similarity else {})


def pictures(side, phase):
    return wave((BATCH, 3, side, side), 0.61, phase, 0.5, 0.5)


def case_of(r, number, model, adapter_of, token_count, meta, similarity=None):
    """@param adapter_of makes the adapter of a model @param meta of the case, with its config
    @param similarity of a model, embeddings of pictures and of texts, if it has cosines of its own"""
    def run(model):
        return observe(adapter_of(model), images, tokens, similarity)

    side = adapter_of(model).image_size + r.choice([0, EXTRA_PIXELS])
    images = pictures(side, number % 97)
    tokens = draw_tokens(r, adapter_of(model).max_text_len, token_count)
    one = run(model)
    noise = rounding_noise(one, copy.deepcopy(model), run, number)
    meta = dict(meta, phase=number % 97, side=side, noise=noise)
    return {name: value.numpy() for name, value in (dict(tokens=tokens) | one).items()}, meta


def write_file(folder, name, seed, build, names_of):
    """A CLIP of random weights and of a vocabulary of its own as torch.save writes it, with the arguments beside it, texts and
    their tokens.

    @param build arguments, model and what makes its adapter, of the tokens in the vocabulary
    """
    folder.mkdir(exist_ok=True)
    (folder / "merges.txt").write_text(MERGES)
    tokenizer = SimpleTokenizer(folder / "merges.txt")
    torch.manual_seed(seed)
    config, model, adapter_of = build(len(tokenizer.encoder))
    torch.save({"state_dict": model.state_dict(), "clip_merges": MERGES}, folder / f"{name}.pt")
    (folder / f"{name}_config.json").write_text(json.dumps(config, indent=1) + "\n")
    adapter = adapter_of(model)
    tokens = tokenizer.tokenize(TEXTS, truncate_text=True)[:, :adapter.max_text_len]
    found = observe(adapter, pictures(adapter.image_size, seed % 97), tokens)
    write_case(folder, "expected", dict(tokens=tokens) | found, dict(texts=TEXTS, phase=seed % 97, names=names_of(model)))
    return model


def defaults_of(function, without=(), required=None):
    """Of the arguments that a config can give. @param required what stands for an argument without a default; none: left out"""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", *without):
            continue
        if parameter.default is not inspect.Parameter.empty:
            found[name] = parameter.default
        elif required is not None:
            found[name] = required
    return found
