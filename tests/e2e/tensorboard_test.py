# SPDX-License-Identifier: MIT
"""The tensorboard package reads the events of a run that was killed and went on.
"""
import json
import signal

import harness
from harness import EndToEnd, needs_reference, records, run_reference

READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"images": 0, "scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
print(json.dumps({
    "scalars": {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in tags["scalars"]},
    "images": {tag: [[event.step, event.width, event.height] for event in events.Images(tag)] for tag in tags["images"]},
    "texts": {tag: [event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)] for tag in tags["tensors"]},
}))
"""


@needs_reference
class Tensorboard(EndToEnd):
    def write(self, epochs):
        return self.config(data={"batch_size": 2}, train={"epochs": epochs, "n_sample_images": 1, "save_every_n_samples": 30},
                           tracker={"log": {"log_type": "tensorboard", "auto_resume": True}})

    def read(self, folder="out/tensorboard"):
        return json.loads(run_reference(READ, self.dir / folder, cwd=self.dir))

    def test_a_killed_run_that_goes_on_is_one_run_in_tensorboard(self):
        config = self.write(epochs=1000)
        process = self.start("--config", config, "--quiet")
        log = self.dir / "out/log.jsonl"
        harness.wait_for(process, lambda: log.exists() and log.read_text().count("Validation Loss") >= 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        first = next((self.dir / "out/tensorboard").iterdir())
        before = self.read()["scalars"]["Unet 0 Training Loss"]
        self.assertGreater(len(before), 4)
        first.write_bytes(first.read_bytes()[:-7])  # as a power cut may leave it
        self.train(self.write(epochs=4))
        self.assertGreaterEqual(len(list((self.dir / "out/tensorboard").iterdir())), 2)
        read = self.read()
        logged = {}
        for record in records(self.dir / "out"):
            step = record["step"]
            for name, value in record.items():
                if name not in ("step", "time") and isinstance(value, (int, float)):
                    kept = [entry for entry in logged.get(name, []) if entry[0] < step]
                    logged[name] = kept + [[step, value]]
        self.assertEqual(set(read["scalars"]), set(logged))
        for name, values in logged.items():
            self.assertEqual([step for step, _ in read["scalars"][name]], [step for step, _ in values], name)
            for (_, found), (_, value) in zip(read["scalars"][name], values):
                self.assertAlmostEqual(found, value, delta=1e-6 * max(1, abs(value)), msg=name)
        for section in ("Train Samples", "Test Samples"):
            self.assertGreaterEqual(len(read["images"][section + "/0"]), 4)  # one an epoch at least
            self.assertTrue(all(size == [38, 20] for _, *size in read["images"][section + "/0"]))
            prefix = "- 0: " + section.split()[0] + ": "
            self.assertGreaterEqual(len(read["texts"][section + "/captions"]), 4)
            self.assertTrue(all(text.startswith(prefix) for text in read["texts"][section + "/captions"]))


if __name__ == "__main__":
    harness.main()
