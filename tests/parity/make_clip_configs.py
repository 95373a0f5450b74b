#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small CLIPs of random configs over all keys that open_clip and Hugging Face's CLIPModel know.

    python tests/parity/make_clip_configs.py --out DIR [--seed N] [--cases N]

One safetensors file a case, in DIR/clip_configs. `config` is what lies beside the weights under the name `config_name`. A
case has either `refused`, the pointer of the key whose value we have no network for, or `weights.*` in halves with `tokens`
and the features of wave pictures. `picture.N` is a file of any mode and shape, and `seen.N` [S, S, 3] what open_clip's
transform for inference makes of it after `convert("RGB")`, before it is normalised.
"""
import dataclasses
import inspect
import io
import json
import random
import warnings

warnings.filterwarnings("ignore")

import numpy as np
import open_clip
import torch
import transformers
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg, CustomTextCLIP
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from torchvision.transforms import Normalize

from case_files import folder_and_options, write_cases
from make_clip import BATCH, MEAN, STD, draw_tokens
from make_clip_files import VOCAB, drawn
from waves import wave

# Values of each key beside the sizes: those that we compute, or that change nothing; and those that we refuse.
VISION = {
    "norm_kwargs": ([None, {}, {"eps": 1e-6}, {"eps": 1e-2}], [{"elementwise_affine": False}]),
    "ls_init_value": ([None], [0.1]), "patch_dropout": ([0.0, 0.5], []), "attentional_pool": ([False], [True, "parallel"]),
    "attn_pooler_queries": ([256, 2], []), "attn_pooler_heads": ([8, 2], []), "no_ln_pre": ([False], [True]),
    "pos_embed_type": (["learnable", "sin_cos_2d"], []), "final_ln_after_pool": ([False], [True]),
    "pool_type": (["tok"], ["avg", "none"]), "output_tokens": ([False], [True]),
    "act_kwargs": ([None], [{"approximate": "tanh"}]), "timm_model_name": ([None, ""], ["vit_tiny_patch16_224"]),
    "timm_model_pretrained": ([False], []), "timm_pool": (["avg", "map"], []), "timm_proj": (["linear", ""], []),
    "timm_proj_bias": ([False, True], []), "timm_drop": ([0.0, 0.1], []), "timm_drop_path": ([None, 0.1], [])}
TEXT = {
    "norm_kwargs": VISION["norm_kwargs"], "hf_tokenizer_name": ([None], ["bert-base-uncased"]),
    "tokenizer_kwargs": ([None, {}], [{"clean": "canonicalize"}]), "ls_init_value": ([None], [0.1]),
    "embed_cls": ([False], [True]), "pad_id": ([0, 1], []), "no_causal_mask": ([False], [True]),
    "final_ln_after_pool": ([False, True], []), "pool_type": (["argmax"], ["first", "last", "none"]),
    "proj_bias": ([False], [True]), "proj_type": (["linear"], ["none"]), "output_tokens": ([False], [True]),
    "act_kwargs": ([None], [{"approximate": "tanh"}]), "hf_model_name": ([None], ["roberta-base"]),
    "hf_model_pretrained": ([True], []), "hf_proj_type": (["mlp"], []), "hf_pooler_type": (["mean_pooler"], [])}
MODEL = {
    "init_logit_bias": ([None], [-10]), "nonscalar_logit_scale": ([False], [True]), "cast_dtype": ([None], []),
    "output_dict": ([False, True], []), "custom_text": ([False, True], []), "multimodal_cfg": ([None], [{"width": 8}]),
    "quick_gelu": ([False, True], []), "init_logit_scale": ([2.0, 4.6], [])}
PREPROCESS = {
    "size": ([224], []), "mode": (["RGB"], ["L"]), "mean": ([list(MEAN), [0.5, 0.4, 0.3]], []),
    "std": ([list(STD), [0.5, 0.6, 0.7]], []), "interpolation": (["bicubic", "bilinear"], ["random"]),
    "resize_mode": (["shortest", "squash", "longest"], ["fit"]), "fill_color": ([0, 200], [256])}
SIZES = {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size", "context_length", "vocab_size", "heads"}
REFUSED = [(section, key, value) for section, table in (("vision_cfg", VISION), ("text_cfg", TEXT), ("", MODEL),
                                                         ("preprocess_cfg", PREPROCESS))
           for key, (_, values) in table.items() for value in values]
REFUSED += [("vision_cfg", "typo", 1), ("text_cfg", "typo", 1), ("preprocess_cfg", "typo", 1), ("root", "typo", 1)]
# What transformers before 5 writes into each section of a config.json as well.
OLD = {**dict.fromkeys("bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id "
                       "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id prefix "
                       "problem_type sep_token_id suppress_tokens task_specific_params tokenizer_class torch_dtype".split()),
       **dict.fromkeys("add_cross_attention do_sample early_stopping is_decoder is_encoder_decoder output_attentions "
                       "output_hidden_states output_scores remove_invalid_values return_dict_in_generate tf_legacy_loss "
                       "tie_encoder_decoder torchscript use_bfloat16".split(), False),
       "return_dict": True, "tie_word_embeddings": True, "chunk_size_feed_forward": 0, "max_length": 20, "min_length": 0,
       "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
       "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0,
       "encoder_no_repeat_ngram_size": 0, "num_return_sequences": 1, "pruned_heads": {}, "_name_or_path": "", "dropout": 0.0,
       "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
PICTURES = 3
MODES = ["RGB", "L", "P", "RGBA", "LA", "1", "CMYK"]


def check_tables():
    """The libraries know no other keys."""
    def keys(kind):
        return {field.name for field in dataclasses.fields(kind)} - SIZES
    assert keys(CLIPVisionCfg) == set(VISION), keys(CLIPVisionCfg) ^ set(VISION)
    assert keys(CLIPTextCfg) == set(TEXT), keys(CLIPTextCfg) ^ set(TEXT)
    assert keys(PreprocessCfg) == set(PREPROCESS), keys(PreprocessCfg) ^ set(PREPROCESS)
    known = set(inspect.signature(CLIP).parameters) | {"custom_text", "multimodal_cfg"}
    assert known == set(MODEL) | {"embed_dim", "vision_cfg", "text_cfg"}, known


def some(r, table):
    return {key: r.choice(values) for key, (values, _) in table.items() if r.random() < 0.5}


def draw_open_clip(r):
    heads, patch = r.choice([1, 2]), r.choice([4, 6])
    vision = dict(layers=r.choice([1, 2]), width=8, head_width=r.choice([4, 8]), patch_size=patch,
                  image_size=patch * r.choice([2, 3]) + r.choice([0, 1]), mlp_ratio=2.0) | some(r, VISION)
    if r.random() < 0.2:
        vision = dict(layers=[1, 1, 1, 1], width=2, head_width=16, image_size=32) | some(r, VISION)
    text = dict(context_length=6, vocab_size=VOCAB, width=8, heads=heads, layers=r.choice([1, 2]), mlp_ratio=2.0) | some(r, TEXT)
    model = dict(embed_dim=6, vision_cfg=vision, text_cfg=text) | some(r, MODEL)
    return {"model_cfg": model, "preprocess_cfg": some(r, PREPROCESS)}


def open_clip_features(config, seed, images, tokens):
    model = {key: value for key, value in config["model_cfg"].items() if key not in ("custom_text", "multimodal_cfg")}
    kind = CustomTextCLIP if config["model_cfg"].get("custom_text") else CLIP
    clip = drawn(kind(**model), seed).half().float()
    config = config["preprocess_cfg"]
    images = Normalize(config.get("mean", MEAN), config.get("std", STD))(images)
    return clip.state_dict(), clip.encode_image(images), clip.encode_text(tokens)


def draw_hugging_face(r):
    """@return config of transformers, and the pointer of what we refuse in it"""
    act, patch, refused = r.choice(["gelu", "quick_gelu"]), r.choice([4, 6]), None
    text = dict(vocab_size=VOCAB, hidden_size=8, intermediate_size=16, num_hidden_layers=r.choice([1, 2]), num_attention_heads=2,
                max_position_embeddings=6, hidden_act=act, layer_norm_eps=r.choice([1e-5, 1e-2]), attention_dropout=r.choice([0.0, 0.5]),
                eos_token_id=r.choice([2, VOCAB - 1]), bos_token_id=VOCAB - 2, pad_token_id=r.choice([0, 1]))
    vision = dict(hidden_size=12, intermediate_size=24, num_hidden_layers=1, num_attention_heads=r.choice([1, 3]), num_channels=3,
                  patch_size=patch, image_size=patch * 2 + r.choice([0, 1]), hidden_act=act, layer_norm_eps=r.choice([1e-5, 1e-2]))
    section, key, value = r.choice([(text, "hidden_act", "gelu_new"), (vision, "hidden_act", "relu"), (text, "eos_token_id", 7)])
    if r.random() < 0.3:
        section[key] = value
        refused = f"/{'text' if section is text else 'vision'}_config/{key}"
    return transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=6), refused


def as_older(config):
    """As versions before 5 wrote it, and before 4.26 with sections that count in place of others."""
    sections = {key: {**OLD, **config[key]} for key in ("text_config", "vision_config")}
    wrong = {key: {**section, "num_attention_heads": 1, "layer_norm_eps": 0.5} for key, section in sections.items()}
    return {**OLD, **config, **wrong, **{f"{key}_dict": section for key, section in sections.items()}}


def hugging_face_features(config, seed, images, tokens):
    clip = drawn(transformers.CLIPModel(config), seed).half().float()
    features = lambda out: getattr(out, "pooler_output", out)
    image = features(clip.get_image_features(pixel_values=Normalize(MEAN, STD)(images)))
    return clip.state_dict(), image, features(clip.get_text_features(input_ids=tokens, attention_mask=torch.ones_like(tokens)))


def draw_pictures(r, side, preprocess):
    """Files, and what open_clip makes of them."""
    steps = image_transform_v2(PreprocessCfg(**preprocess | {"size": side}), is_train=False).transforms[:-2]
    found = {}
    while len(found) < 2 * PICTURES:
        number = len(found) // 2
        size = (r.choice([1, 3, side, r.randrange(2, 40)]), r.choice([1, 5, side, r.randrange(2, 40)]))
        mode = r.choice(MODES)
        values = np.random.default_rng(r.randrange(2**32)).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        picture = Image.fromarray(values).convert({"1": "L"}.get(mode, mode)).convert(mode)
        if mode in ("RGBA", "LA"):
            picture.putalpha(Image.fromarray(values[:, :, 0]))
        file = io.BytesIO()
        picture.save(file, **({"format": "JPEG", "quality": 90} if mode == "CMYK" else {"format": "PNG"}))
        seen = Image.open(io.BytesIO(file.getvalue())).convert("RGB")
        try:
            for step in steps:
                seen = step(seen)
        except ValueError:  # the shorter side would have no pixel
            continue
        found[f"picture.{number}"] = np.frombuffer(file.getvalue(), np.uint8)
        found[f"seen.{number}"] = np.asarray(seen)
    return found


def refuse(config, section, key, value):
    """Puts a value into the config that we refuse. @return its pointer; what preprocess_cfg says we keep as image_*"""
    model, preprocess = config["model_cfg"], config["preprocess_cfg"]
    {"": model, "preprocess_cfg": preprocess, "root": config}.get(section, model.get(section))[key] = value
    if section == "preprocess_cfg" and key != "mode":
        return f"/image_{key}"
    return f"/{section}/{key}" if section not in ("", "root") else f"/{key}"


def make_case(number):
    """Of four cases one is computed, by open_clip and Hugging Face in turn; the others have each a key that we refuse."""
    r = random.Random(number)
    images_of = lambda side: wave((BATCH, 3, side, side), 0.37, 0, 0.5, 0.5)
    tokens = draw_tokens(r, dict(context_length=6, vocab_size=VOCAB))
    if number % 8 == 4:
        config, refused = draw_hugging_face(r)
        side, preprocess = config.vision_config.image_size, {}
        state, image, text = hugging_face_features(config, number, images_of(side), tokens)
        meta = {"config": json.loads(config.to_json_string()), "config_name": "config.json"}
        if number % 16 == 4:
            meta["config"] = as_older(meta["config"])
            assert transformers.CLIPConfig(**meta["config"]).text_config.num_attention_heads == 2
    else:
        config, refused = draw_open_clip(r), None
        side, preprocess = config["model_cfg"]["vision_cfg"]["image_size"], config["preprocess_cfg"]
        meta = {"config": config, "config_name": "open_clip_config.json"}
        if number % 4:
            place = number % 1000
            refused = refuse(config, *REFUSED[(place - place // 4 - 1) % len(REFUSED)])
            return {"weights.text_projection": np.zeros(1, np.float16)}, meta | {"refused": refused}
        state, image, text = open_clip_features(config, number, images_of(side), tokens)
    tensors = {f"weights.{name}": value.half() if value.is_floating_point() else value for name, value in state.items()
               if not name.endswith("position_ids")}
    if not refused:
        tensors |= {"tokens": tokens, "image_features": image, "text_features": text} | draw_pictures(r, side, preprocess)
    return tensors, meta | {"refused": refused, "side": side}


CASES = 48
# What lies in the repository, by the numbers of the cases and of their draws: all that is refused, and six CLIPs.
KEPT = {number: number for number in range(CASES) if number % 4 or number in (0, 4, 16, 20, 36, 40)}


def main():
    check_tables()
    folder, arguments = folder_and_options("clip_configs", __doc__, cases=CASES, kept=KEPT)
    assert arguments.cases * 3 // 4 >= len(REFUSED), len(REFUSED)
    write_cases(folder, make_case, arguments)


if __name__ == "__main__":
    main()
