# SPDX-License-Identifier: MIT
"""`shards order`: each sample once for any number of ranks, and the order of an epoch stays when it is taken up,
also by another number of ranks; told by the sample trace, and equal to that of a real run."""
import json
import pathlib

import harness
from harness import EndToEnd, at_step_of_epoch, run, stop_when

DATA = {"batch_size": 2, "num_workers": 3, "shuffle_train": True, "shuffle_buffer": 5,
        "splits": {"train": 0.5, "val": 0.25, "test": 0.25}}


def traced(path, rank=0, split="train"):
    """The batches of a rank, as the trace tells them."""
    lines = pathlib.Path(f"{path}.rank{rank}").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert all(record["rank"] == rank for record in records)
    return [record["keys"] for record in records if record["split"] == split]


def in_order(ranks):
    """Batches of each rank to the keys of all, step by step, the ranks in order."""
    assert len({len(batches) for batches in ranks}) == 1, "ranks take equal numbers of steps"
    return [key for step in zip(*ranks) for batch in step for key in batch]


class ShardOrder(EndToEnd):
    def setUp(self):
        super().setUp()
        self.file = self.config(data=DATA)
        self.walks = 0

    def order(self, *arguments, config=None, check=0, **kwargs):
        return run("shards", "order", "--config", config or self.file, *arguments, cwd=self.dir, check=check, **kwargs)

    def walk(self, world, *arguments, **kwargs):
        """The order over all ranks, by the trace; it equals what --print says."""
        self.walks += 1
        trace = self.dir / f"trace{self.walks}"
        done = self.order("--world", world, "--print", *arguments, env={"DALLE2_TRACE_SAMPLES": str(trace)}, **kwargs)
        ranks = [traced(trace, rank) for rank in range(world)] if list(self.dir.glob(f"{trace.name}.rank*")) else [[]]
        printed = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["step"] for line in printed], list(range(len(printed))))
        self.assertEqual(in_order(ranks), [key for line in printed for batch in line["keys"] for key in batch])
        self.assertEqual(len(list(self.dir.glob(f"{trace.name}.rank*"))), world if printed else 0)
        return in_order(ranks)

    def test_an_epoch_has_each_sample_once_for_any_number_of_ranks(self):
        for world in (1, 2, 4):
            keys = self.walk(world)
            self.assertEqual((len(keys), len(set(keys))), (48, 48))  # half of the 16 shards of 6
            self.assertNotEqual(keys, self.walk(world, "--epoch", 1))
            self.assertEqual(keys, self.walk(world, "--set", "/data/num_workers=0"))

    def test_a_run_reads_what_was_shown_also_when_it_is_stopped_and_goes_on(self):
        self.file = self.config(data=DATA, train={"epochs": 2, "n_sample_images": 2})
        whole = [self.walk(1, "--epoch", epoch) for epoch in (0, 1)]
        env = {"DALLE2_TRACE_SAMPLES": str(self.dir / "run")}
        stop_when(self.file, self.dir, at_step_of_epoch(1, 0), env)
        begun = in_order([traced(self.dir / "run")])
        self.assertEqual(begun, (whole[0] + whole[1])[:len(begun)])
        self.assertGreater(len(begun), len(whole[0]))
        self.assertLess(len(begun), len(whole[0]) + len(whole[1]))
        rest = self.walk(1, "--from", "out/checkpoint.pth")
        self.assertEqual(begun + rest, whole[0] + whole[1])
        self.assertEqual(self.walk(2, "--from", "out/checkpoint.pth"), rest)
        self.train(self.file, env=env)
        self.assertEqual(in_order([traced(self.dir / "run")]), whole[0] + whole[1])
        # Behind its last epoch a run would begin the next.
        self.assertEqual(self.walk(1, "--from", "out/checkpoint.pth"), self.walk(1, "--epoch", 2))
        self.refuse(3, "--from", "out/model.pth", expect=["out/model.pth: not a position", "checkpoint"])
        self.refuse(2, "--from", "out/checkpoint.pth", "--set", "/seed=1",
                    expect=["out/checkpoint.pth: /config/seed: expected 1", "got 0"])

    def refuse(self, code, *arguments, expect, config=None):
        done = self.order(*arguments, config=config, check=code)
        for part in expect:
            self.assertIn(part, done.stderr)
        self.assertLessEqual(len(done.stderr.splitlines()), 60)
        return done.stdout

    def test_wrong_inputs_are_explained(self):
        usage = run("shards", "order", cwd=self.dir, check=2)
        self.assertIn("--config is required", usage.stdout + usage.stderr)
        self.refuse(2, config="absent.json", expect=["absent.json: cannot read the config"])
        self.refuse(2, "--world", 0, expect=["--world", "expected a whole number from 1 to 4096, got 0"])
        self.refuse(2, "--epoch", -1, expect=["--epoch"])
        self.refuse(2, "--world", 17, expect=["Not enough shards to split evenly: 16 for 17 ranks", "start fewer ranks"])
        self.refuse(2, "--from", "at.pth", "--epoch", 1, expect=["--from: not with --epoch"])
        self.refuse(2, "--overwrite", expect=["--overwrite: needs --save"])
        self.refuse(2, "--set", "/data/resample_train=true", "--set", "/data/shuffle_train=false", expect=["--steps is missing"])
        (self.dir / "bad.pth").write_bytes(b"no checkpoint")
        self.refuse(3, "--from", "bad.pth", expect=["bad.pth"])
        # Before an epoch is read, and without leaving anything behind.
        self.refuse(2, "--save", "new/at.pth", expect=["--save new/at.pth: there is no folder new"])
        self.refuse(2, "--save", "bad.pth", expect=["--save bad.pth: the file exists", "--overwrite"])
        text = self.refuse(3, "--save", "/proc/at.pth", expect=["/proc/at.pth"])
        self.assertNotIn("training shards", text)
        self.assertFalse((self.dir / "new").exists())
        self.refuse(3, "--from", self.file, expect=["config.json"])

    def test_a_position_that_is_damaged_or_of_other_data_is_refused(self):
        self.walk(4, "--steps", 2, "--save", "at.pth")
        (self.dir / "cut.pth").write_bytes((self.dir / "at.pth").read_bytes()[:-40])
        self.refuse(3, "--from", "cut.pth", expect=["cut.pth"])
        self.walk(1, "--steps", 2, "--save", "one.pth")
        self.refuse(2, "--from", "one.pth", "--set", "/data/end_shard=14",
                    expect=["one.pth: the position belongs to other shards", "the names of the 8 shards"])
        self.refuse(2, "--from", "at.pth", "--set", "/seed=5", expect=["/config/seed: expected 5, the config's /seed, got 0"])
        self.refuse(2, "--from", "at.pth", "--set", "/data/shuffle_train=false", "--set", "/data/shuffle_buffer=null",
                    expect=["/config/data/shuffle_train"])
        self.refuse(2, "--from", "at.pth", "--set", "/data/splits={\"train\": 0.25, \"val\": 0.5, \"test\": 0.25}",
                    expect=["/config/data/splits"])


if __name__ == "__main__":
    harness.main()
