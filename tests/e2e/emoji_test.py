# SPDX-License-Identifier: MIT
"""scripts/make_emoji_shards.sh, where the Debian packages are that it takes the pictures from."""
import os
import pathlib
import re
import struct
import subprocess
import tarfile
import unittest

from harness import BINARY, ROOT, EndToEnd, run

SCRIPT = ROOT / "scripts" / "make_emoji_shards.sh"


def make(*arguments, **env):
    return subprocess.run([SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=240,
                          env={**os.environ, "DALLE2_TRAIN": BINARY, **env})


class Emoji(EndToEnd):
    def test_missing_packages_and_wrong_options_are_told(self):
        done = make(self.dir / "shards", DALLE2_EMOJI_FONT="/absent.ttf", DALLE2_EMOJI_NAMES="/absent.txt")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"apt-get install --no-install-recommends fonts-noto-color-emoji unicode-data")
        self.assertFalse((self.dir / "shards").exists())
        done = make("--shards")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown option --shards", done.stderr)

    def test_the_shards_hold_every_emoji_with_its_name(self):
        shards = self.dir / "shards"
        done = make(shards)
        if done.returncode == 2 and "packages are missing" in done.stderr:
            self.skipTest(done.stderr.splitlines()[-1].strip())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        written = int(re.search(r"(\d+) captioned pictures", done.stdout)[1])
        self.assertGreater(written, 3000)
        captions, sizes = {}, set()
        for path in sorted(pathlib.Path(shards).glob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar:
                    stem, field = member.name.split(".")
                    content = tar.extractfile(member).read()
                    if field == "txt":
                        captions[content.decode().strip()] = stem
                    elif field == "png":
                        sizes.add(struct.unpack(">II", content[16:24]))
        self.assertEqual(len(captions), written, "each has a name of its own")
        for name in ("grinning face", "flag: Japan", "thumbs up: dark skin tone", "black cat"):
            self.assertIn(name, captions)
        self.assertEqual(sizes, {(136, 128)})
        self.assertIn(f"{written:,} samples, {written:,} usable", run("shards", "check", shards, cwd=self.dir, check=0).stdout)


if __name__ == "__main__":
    unittest.main()
