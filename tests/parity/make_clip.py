#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CLIPs of random configurations, run by open_clip and clip-anytorch: features, what dalle2-pytorch's adapters make of
them, the contrastive loss of open_clip with every gradient, and features in half precision.

    python tests/parity/make_clip.py --out DIR [--seed N] [--cases N]

One safetensors file a case, in DIR/clip. Weights are a function of the parameter's name (make_unet.fill), so they are not
stored; nor are pictures, which are waves. A gradient is stored as make_unet.compact has it. `noise` is how far each number
moves when every weight moves by one rounding of float32.
"""
import copy
import random
import warnings

warnings.filterwarnings("ignore")

import clip.model as openai
import open_clip
import torch
from dalle2_pytorch import dalle2_pytorch as adapters
from open_clip.loss import ClipLoss
from torchvision.transforms import Normalize

from case_files import folder_and_options, write_cases
from make_unet import compact, rounding_noise
from waves import fill, nudge, wave

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BATCH, EXTRA_PIXELS = 4, 5
NUDGES_OF_HALVES = 6
MOST_HALF_NOISE = 0.1  # of the largest feature: roundings hide more


def draw_config(r, number):
    """@return maker and config, in the keys of open_clip. OpenAI's heads are 64 wide."""
    maker = ("open_clip", "openai")[number % 2]
    resnet = number % 4 >= 2
    wide = maker == "openai"
    text_heads = 1 if wide else r.choice([1, 2, 4])
    text = dict(context_length=r.choice([6, 9, 12]), vocab_size=r.choice([514, 530, 600]),
                width=64 if wide else text_heads * r.choice([4, 8]), heads=text_heads, layers=r.choice([1, 2, 3]),
                mlp_ratio=4.0 if wide else r.choice([2.0, 4.0, 3.7]))
    if resnet:
        width = 4 if wide else r.choice([2, 4])
        vision = dict(layers=[r.choice([1, 2]) for _ in range(4)], width=width,
                      head_width=64 if wide else r.choice([8, 16, 32]), image_size=r.choice([32, 64]))
    else:
        head_width = 64 if wide else r.choice([4, 8])
        patch = r.choice([4, 6])
        vision = dict(layers=r.choice([1, 2, 3]), width=head_width * (1 if wide else r.choice([1, 2, 3])), head_width=head_width,
                      patch_size=patch, image_size=patch * r.choice([2, 3]), mlp_ratio=4.0 if wide else r.choice([2.0, 4.0]))
    return maker, dict(embed_dim=r.choice([8, 12, 20]), vision_cfg=vision, text_cfg=text, quick_gelu=wide or r.random() < 0.3)


def build(maker, config, cast_dtype=None):
    vision, text = config["vision_cfg"], config["text_cfg"]
    if maker == "open_clip":
        model = open_clip.CLIP(**config, cast_dtype=cast_dtype)
    else:
        layers = vision["layers"]
        model = openai.CLIP(config["embed_dim"], vision["image_size"], tuple(layers) if isinstance(layers, list) else layers,
                            vision["width"], vision.get("patch_size"), text["context_length"], text["vocab_size"], text["width"],
                            text["heads"], text["layers"])
    fill(model)
    return model


def adapter_of(maker, model, config):
    """One of dalle2-pytorch around a model of one's own; its constructor would download weights."""
    kind = adapters.OpenClipAdapter if maker == "open_clip" else adapters.OpenAIClipAdapter
    adapter = kind.__new__(kind)
    adapters.BaseClipAdapter.__init__(adapter, model)
    adapter.eos_id = config["text_cfg"]["vocab_size"] - 1
    adapter.cleared = False
    adapter.handle = adapter.find_layer("ln_final").register_forward_hook(adapter._hook)
    adapter.clip_normalize = Normalize(MEAN, STD)
    return adapter


def draw_tokens(r, text):
    """Texts of all lengths between the two tokens that enclose them, with a token 0 in some."""
    rows = []
    for _ in range(BATCH):
        length = r.randrange(text["context_length"] - 1)
        words = [r.choice([0, r.randrange(1, text["vocab_size"] - 2)]) for _ in range(length)]
        row = [text["vocab_size"] - 2, *words, text["vocab_size"] - 1]
        rows.append(row + [0] * (text["context_length"] - len(row)))
    return torch.tensor(rows)


def half_features(maker, config, state, images, tokens, nudge_seed=None):
    """In bfloat16 by open_clip, in float16 by clip-anytorch; with weights moved by a rounding if `nudge_seed` says how."""
    dtype = torch.bfloat16 if maker == "open_clip" else torch.float16
    model = build(maker, config, dtype)
    model.load_state_dict(state)
    model.eval()
    if maker == "open_clip":
        open_clip.model.convert_weights_to_lp(model, dtype)
    else:
        openai.convert_weights(model)
    if nudge_seed is not None:
        nudge(model.parameters(), nudge_seed, dtype)
    with torch.no_grad():
        return {"half.image_features": model.encode_image(images.to(dtype)).float(),
                "half.text_features": model.encode_text(tokens).float()}


def observe(model, maker, config, images, larger, tokens):
    """A pass in training mode with its gradients, then features and embeddings in eval mode."""
    normalized = Normalize(MEAN, STD)(images)
    model.train()
    unit = lambda features: torch.nn.functional.normalize(features, dim=-1)
    image, text = unit(model.encode_image(normalized)), unit(model.encode_text(tokens))
    loss = ClipLoss()(image, text, model.logit_scale.exp())
    loss.backward()
    found = dict(loss=loss) | {f"grad.{name}": compact(parameter.grad) for name, parameter in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        found["image_features"], found["text_features"] = model.encode_image(normalized), model.encode_text(tokens)
        adapter = adapter_of(maker, model, config)
        found["image_embed"] = adapter.embed_image(larger).image_embed
        embedded = adapter.embed_text(tokens)
        found["text_embed"], found["text_encodings"] = embedded.text_embed, embedded.text_encodings
    adapter.handle.remove()
    return {name: value.detach().clone() for name, value in found.items()}


def make_case(number):
    r = random.Random(number)
    maker, config = draw_config(r, number)
    model = build(maker, config)
    side = config["vision_cfg"]["image_size"]
    images = wave((BATCH, 3, side, side), 0.37, number % 97, 0.5, 0.5)
    larger = wave((BATCH, 3, side + EXTRA_PIXELS, side + EXTRA_PIXELS), 0.61, number % 97, 0.5, 0.5)
    tokens = draw_tokens(r, config["text_cfg"])
    start = copy.deepcopy(model)
    one = observe(model, maker, config, images, larger, tokens)
    noise = rounding_noise(one, start, lambda moved: observe(moved, maker, config, images, larger, tokens), number)
    tensors = dict(tokens=tokens) | one
    half = lambda nudge_seed=None: half_features(maker, config, model.state_dict(), Normalize(MEAN, STD)(images), tokens, nudge_seed)
    halves = half()
    tensors |= halves
    for moved in map(half, range(NUDGES_OF_HALVES)):
        for name, features in halves.items():
            noise[name] = max(noise.get(name, 0.0), float((moved[name] - features).abs().max()))
    if any(noise[name] > MOST_HALF_NOISE * float(features.abs().max()) for name, features in halves.items()):
        return None
    meta = dict(maker=maker, config=config, names=sorted(model.state_dict()), phase=number % 97,
                extra_pixels=EXTRA_PIXELS, noise=noise)
    return {name: value.numpy() for name, value in tensors.items()}, meta


# What lies in the repository, by the numbers of the cases and of their draws: both towers of both libraries.
KEPT = {2: 3, 3: 4, 4: 5, 5: 6, 7: 8}


def main():
    folder, arguments = folder_and_options("clip", __doc__, cases=8, kept=KEPT)
    write_cases(folder, make_case, arguments)


if __name__ == "__main__":
    main()
