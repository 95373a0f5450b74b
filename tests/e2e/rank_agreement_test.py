# SPDX-License-Identifier: MIT
"""Processes that were started as one run and are not: another config, other checkpoints, other data."""
import pathlib
import shutil

import harness
import prior_data
import vae_runs
from harness import rank_variables
from rank_runs import RankRuns


class Agreement(RankRuns):
    def by_hand(self, config, *options, folders=None):
        """Starts two ranks, each with options and a working directory of its own. @return code and output of each"""
        port = harness.free_port()
        processes = [harness.start("--config", config, *own, cwd=(folders or [self.dir] * 2)[rank], env=rank_variables(rank, 2, port))
                     for rank, own in enumerate(options)]
        outputs = [process.communicate(timeout=60)[0] for process in processes]
        return [(process.returncode, " ".join(output.split())) for process, output in zip(processes, outputs)]

    def test_ranks_with_another_config_or_program_are_refused(self):
        config = self.write("mixed", train={"epochs": 1})
        for option, text in (("/seed=5", "/seed: rank 0 has 0, rank 1 5"),
                             ("/data/batch_size=5", "/data/batch_size: rank 0 has 2, rank 1 5"),
                             ("/train/shard_optimizer=true", "/train/shard_optimizer: rank 0 has false, rank 1 true")):
            for code, output in self.by_hand(config, [], ["--set", option]):
                self.assertEqual(code, 2, output)
                self.assertIn("rank 1 was started with another config than rank 0: " + text, output)
        self.assertEqual([code for code, _ in self.by_hand(config, [], [])], [0, 0])

    def test_ranks_that_would_begin_from_different_files_are_refused(self):
        config = self.write("mixed", train={"epochs": 2}, keep_last=1)
        self.run_ranks(config, 2)
        elsewhere = self.dir / "elsewhere"
        shutil.copytree(self.dir / "mixed", elsewhere / "mixed")
        (elsewhere / "mixed/checkpoint.pth").write_bytes(b"torn")
        before = (self.dir / "mixed/checkpoint.pth").read_bytes()
        for code, output in self.by_hand(config, [], [], folders=[self.dir, elsewhere]):
            self.assertEqual(code, 3, output)
            self.assertRegex(output, "rank 0 starts from mixed/checkpoint.pth, rank 1 from mixed/snapshots/.* All ranks must read the same files")
        self.assertEqual((self.dir / "mixed/checkpoint.pth").read_bytes(), before)

    def test_ranks_that_find_other_data_are_refused(self):
        """Of each kind. The paths of the config are relative, and each rank has a folder of its own."""
        folders = [self.dir / "a", self.dir / "b"]
        for folder in folders:
            folder.mkdir()
            shutil.copytree(self.shards, folder / "shards")
            prior_data.make_embeddings(folder)
            (folder / "pictures").mkdir()
            for number in range(6):
                vae_runs.write_white(folder / f"pictures/{number}.png", 32)
        sorted((folders[1] / "shards").glob("*.tar"))[0].unlink()
        (folders[1] / "pictures/3.png").rename(folders[1] / "pictures/x.png")
        (folders[1] / "images/other").mkdir()
        table = sorted((folders[1] / "images").glob("*.npy"))[-1]
        table.rename(folders[1] / "images/other" / table.name)
        configs = {
            "shards": harness.tiny_config("shards", "out", data={"end_shard": len(list((folders[0] / "shards").glob("*.tar"))) - 1}),
            "pictures": vae_runs.vae_config("pictures", "out", vae={"use_vgg_and_gan": False}),
            "embeddings": prior_data.prior_config(pathlib.Path("."), "out")}
        for what, config in configs.items():
            with self.subTest(what):
                path = harness.write_config(self.dir / f"{what}.json", config)
                for code, output in self.by_hand(path, [], [], folders=folders):
                    self.assertEqual(code, 3, output)
                    self.assertIn(f"rank 1 finds other {what} than rank 0 All ranks must read the same {what}", output)
                self.assertFalse((folders[0] / "out/log.jsonl").exists())


if __name__ == "__main__":
    harness.main()
