# SPDX-License-Identifier: MIT
"""A run that is stopped anywhere and goes on is, bit for bit, the run that never stopped: weights, averages,
optimizers, schedules, position, and the losses it logged."""
import hashlib
import re
import signal

import harness
from harness import EndToEnd, checkpoint_content, records

EPOCHS = 3
OPTIONS = {"min_snr_gamma": 5, "timestep_sampling": {"scheme": "logit_normal"}, "noise_offset": 0.1,
           "input_perturbation": 0.1, "dream": {"enabled": True}, "loss_weighting": "cosmap"}


def saved_state(path, cwd):
    """Every tensor's bytes (hashed) and every other value of a checkpoint but the config."""
    tensors, tree = checkpoint_content(path, cwd)
    return {name: hashlib.sha256(content).hexdigest() for name, (_, content) in tensors.items()}, tree


def logged_losses(data_path):
    """The records of training and validation without what depends on the clock."""
    timed = ("Samples per second", "Seconds ", "Memory ")
    return [{key: value for key, value in record.items() if not key.startswith(timed)}
            for record in records(data_path) if any("Loss" in key for key in record)]


def stop_when(config, cwd, reached, env=None):
    """Starts the run and sends SIGTERM as soon as `reached(line)` holds for a line it printed."""
    process = harness.start("--config", config, cwd=cwd, env=env)
    output, sent = [], False
    for line in process.stdout:
        output.append(line)
        if not sent and reached(line):
            process.send_signal(signal.SIGTERM)
            sent = True
    process.stdout.close()
    if process.wait(timeout=60) != 75:
        raise AssertionError("".join(output))


def at_step_of_epoch(epoch, step):
    """Whether the lines of the console so far have the loss of that update of the epoch: the first, the eleventh, ..."""
    losses_shown = None

    def reached(line):
        nonlocal losses_shown
        if f"Starting epoch {epoch}" in line:
            losses_shown = 0
        elif losses_shown is not None and re.match(r"step \d+  loss ", line):
            losses_shown += 1
        return losses_shown == step // 10 + 1
    return reached


class Resume(EndToEnd):
    def write(self, name, train):
        return self.config(
            f"{name}.json", name,
            data={"batch_size": 2, "num_workers": 2, "shuffle_train": True,
                  "preprocessing": {"RandomResizedCrop": {"size": [16, 16], "scale": [0.75, 1.0], "ratio": [1.0, 1.0]},
                                    "ToTensor": True}},
            train={"epochs": EPOCHS, "n_sample_images": 0, "warmup_steps": 20, "cosine_decay_max_steps": 100, **train})

    def test_a_decoder_with_the_options_of_the_loss(self):
        self.train(self.write("plain", {}))
        self.train(self.write("whole", OPTIONS))
        self.assertNotEqual(logged_losses(self.dir / "whole"), logged_losses(self.dir / "plain"))
        self.assertGreater(len(logged_losses(self.dir / "whole")), 3 * EPOCHS)
        config = self.write("middle", OPTIONS)
        stop_when(config, self.dir, at_step_of_epoch(1, 10))
        where = saved_state(self.dir / "middle/checkpoint.pth", self.dir)[1]
        self.assertEqual((where["epoch"], where["next_task"]), (1, "train"))
        self.assertGreater(where["sample"], 0)
        self.assertLess(where["sample"], where["dalle2_train"]["samples_per_epoch"])
        self.assertRegex(self.train(config).stdout, r"having seen \d+ samples")
        (whole_tensors, whole_tree), (tensors, tree) = (saved_state(self.dir / name / "checkpoint.pth", self.dir) for name in ("whole", "middle"))
        self.assertEqual(tree, whole_tree)
        self.assertEqual([key for key in whole_tensors if tensors.get(key) != whole_tensors[key]], [])
        self.assertEqual(len(tensors), len(whole_tensors))
        self.assertEqual(logged_losses(self.dir / "middle"), logged_losses(self.dir / "whole"))


if __name__ == "__main__":
    harness.main()
