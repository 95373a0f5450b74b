# SPDX-License-Identifier: MIT
"""What the tests of several processes share: configs, and how their runs are started."""
import harness
import prior_data
from harness import EndToEnd, run
from resume_test import UNET

ONE_UNET = {"unets": [{**UNET, "image_embed_dim": 32, "self_cond": True}]}
TWO_UNETS = {"unets": [{**UNET, "image_embed_dim": 32}, UNET], "image_size": None, "image_sizes": [8, 16], "sample_timesteps": [3, 3]}


class RankRuns(EndToEnd):
    def write(self, name, decoder=None, lanes=None, train=None, keep_last=0, **data):
        config = harness.tiny_config(
            self.shards, name, decoder=decoder or ONE_UNET,
            data={"batch_size": 2, "num_workers": 1, "shuffle_train": True, "lanes": lanes,
                  "splits": {"train": 0.6, "val": 0.2, "test": 0.2}, **data},
            train={"epochs": 5, "n_sample_images": 0, "log_every_n_updates": 1, **(train or {})})
        config["decoder"] = {key: value for key, value in config["decoder"].items() if value is not None}
        config["tracker"]["keep_last"] = keep_last
        return harness.write_config(self.dir / f"{name}.json", config)

    def write_prior(self, name, train=None, **data):
        if not (self.dir / "images").exists():
            prior_data.make_embeddings(self.dir)
        return harness.write_config(self.dir / f"{name}.json", prior_data.prior_config(
            self.dir, name, train={"epochs": 9, "log_every_n_updates": 1, **(train or {})}, data=data))

    def run_ranks(self, config, ranks, check=0, **kwargs):
        return run("--config", config, *(["--nproc-per-node", str(ranks)] if ranks > 1 else []), cwd=self.dir, check=check, **kwargs)
