# SPDX-License-Identifier: MIT
"""Adapters of PEFT on attentions and a unet of dalle2-pytorch: outputs, gradients, five steps of AdamW.

    python make_lora.py --out fixtures [--seed 0]      writes fixtures/lora/

Weights of the networks are a function of the parameter's name (see make_unet.py), so they are not stored.
"""
import warnings

warnings.filterwarnings("ignore")

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.nn import functional as F

import dalle2_pytorch.dalle2_pytorch as reference

from case_files import folder_and_options, write_case
from close_choices import hides
from waves import fill, nudge

STEPS = 5
MOST_DRAWS = 20
LARGEST_SHARE = 0.01  # of an adapter's largest weight, that the test may allow for roundings
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 1e-2}
UNET = {"dim": 4, "dim_mults": (1, 2), "image_embed_dim": 6, "cond_dim": 8, "num_resnet_blocks": 1, "resnet_groups": 4,
        "num_image_tokens": 1, "num_time_tokens": 1, "attn_heads": 2, "attn_dim_head": 4, "self_attn": (False, True),
        "sparse_attn": True, "cond_on_image_embeds": True}


def our_name(name):
    """Of a module with adapters: {layer}.base_layer.weight, {layer}.lora_A.default.weight."""
    for peft, ours in ((".base_layer.", "."), (".lora_A.default.", ".lora.down."), (".lora_B.default.", ".lora.up.")):
        name = name.replace(peft, ours)
    return name


def train(folder, name, make_module, draw_inputs, run, lora, generator, kind, **meta):
    """One case: adapters of random weights, so that gradients of both halves say something; then steps of AdamW.

    Inputs and adapters are drawn anew while roundings hide where an adapter ends: Adam enlarges those of gradients that nearly cancel.
    """
    for _ in range(MOST_DRAWS):
        tensors, losses, frozen, noise = trained_adapters(make_module(), draw_inputs(), run, lora, generator)
        ends = {key: float(tensors[f"end.{key}"].abs().max()) for key in noise if ".lora." in key}
        if not hides(noise, LARGEST_SHARE, ends):
            write_case(folder, name, tensors, {"kind": kind, "lora": lora, "losses": losses, "adamw": ADAMW, "frozen": frozen,
                                               "end_noise": noise, **meta})
            return
    raise SystemExit(f"{name}: roundings hide where the adapters end, in each of {MOST_DRAWS} draws")


def trained_adapters(module, inputs, run, lora, generator):
    """@return tensors of a case, its losses, the names of frozen parameters, and how far roundings move each trained one"""
    fill(module)
    config = LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["targets"],
                        bias="all" if lora.get("train_bias") else "none")
    module = inject_adapter_in_model(config, module)
    for parameter_name, parameter in module.named_parameters():
        if ".lora_" in parameter_name:
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
            assert parameter.requires_grad
        else:
            parameter.requires_grad_(bool(lora.get("train_bias")) and parameter_name.endswith("bias"))
    module.train()
    trained = {our_name(k): p for k, p in module.named_parameters() if p.requires_grad}
    tensors = {f"in.{k}": v for k, v in inputs.items()} | {f"start.{k}": p for k, p in trained.items()}
    tensors = {k: v.detach().clone() for k, v in tensors.items()}
    begin = [p.detach().clone() for p in module.parameters()]
    results, losses = steps(module, trained, inputs, run)
    tensors |= results
    # How far the reference's own result moves when its numbers move by one rounding.
    noise = dict.fromkeys(trained, 0.0)
    for seed in (1, 2, 3):
        with torch.no_grad():
            for p, value in zip(module.parameters(), begin):
                p.copy_(value)
        nudge(module.parameters(), seed)
        moved, _ = steps(module, trained, inputs, run)
        noise = {k: max(noise[k], (moved[f"end.{k}"] - results[f"end.{k}"]).abs().max().item()) for k in noise}
    frozen = [our_name(k) for k, p in module.named_parameters() if not p.requires_grad]
    return tensors, losses, frozen, noise


def steps(module, trained, inputs, run):
    """STEPS updates. @return first output and gradients and last values, and the losses"""
    tensors, losses = {}, []
    optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
    for step in range(STEPS):
        out = run(module, inputs)
        target = torch.sin(torch.arange(out.numel(), dtype=torch.float32)).reshape(out.shape)
        loss = F.mse_loss(out, target)
        losses.append(loss.item())
        loss.backward()
        if step == 0:
            tensors["out"] = out
            tensors |= {f"grad.{k}": p.grad.clone() for k, p in trained.items() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    return tensors | {f"end.{k}": p.detach().clone() for k, p in trained.items()}, losses


def networks(folder, generator):
    draw = lambda *shape: torch.randn(shape, generator=generator)
    shape = {"dim": 12, "heads": 2, "dim_head": 4}
    train(folder, "attention", lambda: reference.Attention(**shape, cosine_sim=False), lambda: {"x": draw(2, 5, 12)},
          lambda m, i: m(i["x"]), {"rank": 4, "alpha": 8, "targets": ["to_q", "to_kv", "to_out.0"]}, generator, "attention", shape=shape)
    # Twenty pixels and two condition tokens fold the projections; two and five do not.
    for name, pixels, context in (("cross_folded", 20, 2), ("cross_plain", 2, 5)):
        train(folder, name, lambda: reference.CrossAttention(dim=12, context_dim=6),
              lambda: {"x": draw(2, pixels, 12), "context": draw(2, context, 6)}, lambda m, i: m(i["x"], i["context"]),
              {"rank": 2, "alpha": 1, "targets": ["to_q", "to_kv", "to_out.0"]}, generator, "cross")
    train(folder, "linear_attention", lambda: nn.Sequential(reference.LinearAttention(12, dim_head=4, heads=2)),
          lambda: {"x": draw(2, 12, 3, 3)}, lambda m, i: m[0](i["x"]) + i["x"],
          {"rank": 2, "alpha": 2, "targets": ["to_qkv", "to_out.0"]}, generator, "linear_attention", shape=shape)
    train(folder, "unet", lambda: reference.Unet(**UNET),
          lambda: {"x": draw(2, 3, 8, 8), "time": torch.tensor([7, 431]), "embed": draw(2, 6)},
          lambda m, i: m(i["x"], i["time"], image_embed=i["embed"]),
          {"rank": 1, "alpha": 1.5, "targets": ["to_q", "to_kv", "to_out.0", "to_time_hiddens.1"], "train_bias": True},
          generator, "unet", unet=UNET)


def begins():
    """Statistics of a large adapter's beginning, of both kinds."""
    out = {}
    for init in ("gaussian", True):
        module = inject_adapter_in_model(LoraConfig(r=16, lora_alpha=4, target_modules=["to_q"], init_lora_weights=init),
                                         nn.ModuleDict({"to_q": nn.Linear(4096, 64)}))
        down, up = module["to_q"].lora_A["default"].weight, module["to_q"].lora_B["default"].weight
        out["gaussian" if init == "gaussian" else "kaiming"] = {
            "std": down.std().item(), "largest": down.abs().max().item(), "up": up.abs().max().item(),
            "scale": module["to_q"].scaling["default"]}
    return out


def main():
    folder, arguments = folder_and_options("lora", __doc__)
    torch.manual_seed(arguments.seed)
    networks(folder, torch.Generator().manual_seed(arguments.seed))
    write_case(folder, "begins", {"none": torch.zeros(1)}, begins())


if __name__ == "__main__":
    main()
