# SPDX-License-Identifier: MIT
"""Fine-tuning by adapters, from a base checkpoint. What is drawn with them is in sample_options_test.py."""
import pathlib
import re

import harness
from harness import EndToEnd, needs_reference, run, run_reference

LORA = {"rank": 2, "alpha": 8}

WITH_PEFT = """
import json, warnings
warnings.filterwarnings("ignore")
import torch
from diffusers.utils.state_dict_utils import convert_unet_state_dict_to_peft
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file
from dalle2_pytorch.train_configs import TrainDecoderConfig

base = torch.load("base/model.pth", weights_only=True)
decoder = TrainDecoderConfig(**base["config"]).decoder.create()
decoder.load_state_dict(base["model"])
with safe_open("lora/lora.safetensors", "pt") as file:
    metadata = json.loads(file.metadata()["lora_adapter_metadata"])
config = LoraConfig(**{key.removeprefix("unets.0."): value for key, value in metadata.items()})
unet = inject_adapter_in_model(config, decoder.unets[0])
adapters = {key.removeprefix("unets.0."): value for key, value in load_file("lora/lora.safetensors").items()}
result = set_peft_model_state_dict(unet, convert_unet_state_dict_to_peft(adapters))
assert not result.unexpected_keys, result.unexpected_keys
merged = torch.load("lora/model.pth", weights_only=True)["model"]
layers = 0
for name, module in unet.named_modules():
    if hasattr(module, "base_layer"):
        weight = module.base_layer.weight + module.get_delta_weight("default")
        assert torch.allclose(weight, merged[f"unets.0.{name}.weight"], atol=1e-6), name
        layers += 1
assert layers == len(adapters) // 2 > 10, layers
print("layers", layers)
"""


def tensors_of(path, cwd):
    """Bytes of every tensor of a safetensors file, or of what a .pth file becomes, by its name in the decoder."""
    path = pathlib.Path(cwd) / path
    if path.suffix != ".safetensors":
        run("convert", path, path.with_suffix(".all.safetensors"), "--overwrite", cwd=cwd, check=0)
        path = path.with_suffix(".all.safetensors")
    return {name.removeprefix("model."): content for name, (_, content) in harness.read_safetensors(path)[0].items()}


def is_adapter(name):
    return ".lora." in name


class Lora(EndToEnd):
    def train_base(self, decoder=None):
        self.train(self.config("base.json", "base", decoder=decoder or {}, train={"n_sample_images": 0}))

    def config_of(self, name, base="base/checkpoint.pth", decoder=None, tracker=None, **train):
        return self.config(f"{name}.json", name, decoder=decoder or {}, data={"batch_size": 2, "num_workers": 2},
                           train={"epochs": 2, "n_sample_images": 0, "lora": LORA, **train},
                           tracker={"load": {"load_from": "local", "file_path": base}, **(tracker or {})})

    def test_a_run_trains_adapters_alone_and_leaves_their_file(self):
        self.train_base()
        done = self.train(self.config_of("lora"))
        self.assertRegex(done.stdout, r"base/checkpoint.pth.*the \d+ adapters of /train/lora start from zero")
        total, training = map(int, re.search(r"Number of parameters: (\d+) total; (\d+) training",
                                                           done.stdout).groups())
        self.assertLess(training, total / 5)

        saved = tensors_of("lora/checkpoint.pth", self.dir)
        base = tensors_of("base/model.pth", self.dir)  # the averaged weights, which it started from
        frozen = [name for name in base if name.startswith("unets.")]
        self.assertGreater(len(frozen), 50)
        self.assertEqual([name for name in frozen if saved[name] != base[name]], [])
        adapters = tensors_of("lora/lora.safetensors", self.dir)
        self.assertEqual(set(adapters), {name for name in saved if name.startswith("unets.") and is_adapter(name)})
        trained = [any(content) for name, content in adapters.items() if "cross_attn" in name]
        self.assertGreater(len(trained), 10)
        self.assertTrue(all(trained))

        self.assertIn("a run can resume from it", run("fsck", "lora", cwd=self.dir, check=0).stdout)
        self.assertIn("to_q.lora.down.weight", run("inspect", "lora/lora.safetensors", cwd=self.dir, check=0).stdout)

    @needs_reference
    def test_the_adapters_are_put_in_by_the_reference_and_peft_as_by_us(self):
        self.train_base()
        self.train(self.config_of("lora"))
        self.assertRegex(run_reference(WITH_PEFT, cwd=self.dir), r"(?m)^layers \d+$")

    def test_a_dry_run_counts_what_is_trained(self):
        self.train_base()
        done = run("--config", self.config_of("dry"), "--dry-run", cwd=self.dir, check=0)
        self.assertRegex(done.stdout, r"adapters of rank 2: [\d,]+ parameters are trained, the others are frozen")


if __name__ == "__main__":
    harness.main()
