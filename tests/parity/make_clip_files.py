#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small CLIPs in the files of OpenAI, open_clip and Hugging Face, with the features that these give.

    python tests/parity/make_clip_files.py --out DIR [--seed N]

Writes DIR/clip_files/FORMAT/, the model and what lies beside it, and FORMAT/expected.safetensors. Pictures are waves.
"""
import json
import random
import warnings

warnings.filterwarnings("ignore")

import clip.model as openai
import open_clip
import torch
import transformers
from safetensors.torch import save_file
from torchvision.transforms import Normalize

from case_files import folder_and_options, write_case
from make_clip import BATCH, MEAN, STD, draw_tokens
from waves import wave

VOCAB = 514


def drawn(model, seed):
    """Weights of everyday size: those of formulas are too much alike to tell two exchanged tensors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith(("logit_scale", "num_batches_tracked")) or not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator) * 0.2
            is_gain = value.dim() == 1 and name.endswith("weight") or name.endswith("running_var")
            value.copy_(noise.abs() * 0.5 + 1 if is_gain else noise)
    return model.eval()


def write(folder, side, config, image, text, tokens):
    write_case(folder, "expected", {"tokens": tokens, "image_features": image.float(), "text_features": text.float()},
               {"side": side, "config": config})


def make_openai(folder, r, seed):
    """The archive: half precision, a program of every layer, and three numbers beside the weights."""
    side, context = 12, 7
    model = drawn(openai.CLIP(8, side, 1, 64, 6, context, VOCAB, 64, 1, 1), seed)
    images, tokens = wave((BATCH, 3, side, side), 0.37, 0, 0.5, 0.5), draw_tokens(r, dict(context_length=context, vocab_size=VOCAB))
    openai.convert_weights(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    del model.context_length, model.vocab_size
    for name, value in (("input_resolution", side), ("context_length", context), ("vocab_size", VOCAB)):
        model.register_buffer(name, torch.tensor(value))
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(model, (images, tokens), check_trace=False), str(folder / "tiny.pt"))
    plain = openai.CLIP(8, side, 1, 64, 6, context, VOCAB, 64, 1, 1)
    plain.load_state_dict(state)
    plain.float().eval()
    write(folder, side, dict(quick_gelu=True, layers=1, heads=1), plain.encode_image(Normalize(MEAN, STD)(images)),
          plain.encode_text(tokens), tokens)


def make_open_clip(folder, r, seed, resnet):
    mean, std = [0.5, 0.4, 0.3], [0.5, 0.6, 0.7]
    vision = dict(layers=[1, 1, 1, 1], width=2, head_width=16, image_size=32) if resnet else dict(
        layers=2, width=8, head_width=4, patch_size=4, image_size=12, mlp_ratio=2.0)
    text = dict(context_length=6, vocab_size=VOCAB, width=8, heads=2, layers=1, mlp_ratio=3.7)
    config = dict(embed_dim=6, quick_gelu=not resnet, vision_cfg=vision, text_cfg=text)
    model = drawn(open_clip.CLIP(**config), seed)
    side = vision["image_size"]
    images, tokens = wave((BATCH, 3, side, side), 0.37, 0, 0.5, 0.5), draw_tokens(r, text)
    with open(folder / "open_clip_config.json", "w", encoding="utf-8") as file:
        json.dump({"model_cfg": config, "preprocess_cfg": {"mean": mean, "std": std, "interpolation": "bicubic"}}, file, indent=1)
        file.write("\n")
    save_file(model.state_dict(), str(folder / "open_clip_model.safetensors"))
    if not resnet:
        torch.save({"epoch": 3, "name": "tiny", "state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}},
                   folder / "epoch_3.pt")
    write(folder, side, config, model.encode_image(Normalize(mean, std)(images)), model.encode_text(tokens), tokens)


def make_hugging_face(folder, r, seed):
    side = 12
    text = dict(vocab_size=VOCAB, hidden_size=8, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=7, hidden_act="gelu", eos_token_id=VOCAB - 1, bos_token_id=VOCAB - 2, pad_token_id=0)
    vision = dict(hidden_size=12, intermediate_size=24, num_hidden_layers=1, num_attention_heads=3, image_size=side, patch_size=4,
                  hidden_act="gelu")
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=6)
    model = drawn(transformers.CLIPModel(config), seed)
    images = wave((BATCH, 3, side, side), 0.37, 0, 0.5, 0.5)
    tokens = draw_tokens(r, dict(context_length=7, vocab_size=VOCAB))
    model.save_pretrained(folder)
    features = lambda out: getattr(out, "pooler_output", out)
    image = features(model.get_image_features(pixel_values=Normalize(MEAN, STD)(images)))
    write(folder, side, dict(quick_gelu=False), image,
          features(model.get_text_features(input_ids=tokens, attention_mask=torch.ones_like(tokens))), tokens)


def main():
    all_files, arguments = folder_and_options("clip_files", __doc__)
    r = random.Random(arguments.seed)
    makers = dict(openai=make_openai, hugging_face=make_hugging_face, open_clip=lambda *a: make_open_clip(*a, False),
                  open_clip_resnet=lambda *a: make_open_clip(*a, True))
    for number, (name, make) in enumerate(makers.items()):
        folder = all_files / name
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, r, arguments.seed * 10 + number)
        for path in folder.iterdir():
            path.chmod(0o644)


if __name__ == "__main__":
    main()
