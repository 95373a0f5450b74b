#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CLIPs of x-clip of random configurations: what dalle2-pytorch's adapter makes of pictures and texts, and the state dict
of one, as a file.

    python tests/parity/make_x_clip.py --out DIR [--seed N] [--cases N]

One safetensors file a case, in DIR/x_clip. Weights are a function of the parameter's name (waves.fill), so they are not
stored; nor are pictures, which are waves. `noise` is how far each number moves when every weight moves by one rounding of
float32. DIR/x_clip/file has a small CLIP with its networks for training, as torch.save writes it.
"""
import json
import random
import warnings

warnings.filterwarnings("ignore")

from dalle2_pytorch.dalle2_pytorch import XClipAdapter
from x_clip import CLIP
from x_clip.mlm import MLM

from adapter_cases import case_of, defaults_of, write_file
from case_files import folder_and_options, write_cases
from waves import fill


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


def names_of(model):
    """In their order, without those of networks for training."""
    return [name for name in model.state_dict() if not name.startswith(("mlm.", "visual_ssl."))]


def make_case(number):
    r = random.Random(number)
    config = draw_config(r, number)
    model = CLIP(**config)
    fill(model)
    return case_of(r, number, model.eval(), XClipAdapter, config["num_text_tokens"], dict(config=config, names=names_of(model)))


def build_for_file(token_count):
    """With what only training needs."""
    config = dict(dim_text=6, dim_image=8, dim_latent=6, num_text_tokens=token_count, text_enc_depth=1, text_seq_len=12,
                  text_heads=1, text_dim_head=4, text_rotary_pos_emb=True, visual_enc_depth=1, visual_heads=2, visual_dim_head=3,
                  visual_image_size=8, visual_patch_size=4, use_mlm=True, mlm_mask_prob=0.2, extra_latent_projection=True)
    return config, CLIP(**config).eval(), XClipAdapter


def defaults():
    found = defaults_of(CLIP.__init__, without=("image_encoder", "text_encoder", "visual_ssl", "kwargs"))
    return found | {f"mlm_{name}": value for name, value in defaults_of(MLM.__init__).items()}


def main():
    folder, arguments = folder_and_options("x_clip", __doc__, cases=8)
    write_cases(folder, make_case, arguments.seed, arguments.cases)
    write_file(folder / "file", "x_clip", arguments.seed, build_for_file, names_of)
    (folder / "defaults.json").write_text(json.dumps(defaults(), indent=1) + "\n")


if __name__ == "__main__":
    main()
