# SPDX-License-Identifier: MIT
"""The pages of docs/: the site builds without a broken link, the page of commands is what --help prints, and links of README lead
somewhere."""
import re
import subprocess
import sys
import unittest

import harness
from harness import BINARY, ROOT

sys.path.insert(0, str(ROOT / "scripts/docs"))
import architecture  # noqa: E402


class DocsSite(unittest.TestCase):
    def test_the_page_of_commands_is_what_help_prints(self):
        made = subprocess.run([sys.executable, ROOT / "scripts/docs/command_pages.py", BINARY], check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        self.assertGreaterEqual(made.count("\n## "), 15)
        self.assertEqual((ROOT / "docs/commands.md").read_text(), made, "run scripts/docs.sh --commands")

    def test_the_picture_of_the_architecture_is_drawn_from_this_code(self):
        made = subprocess.run([sys.executable, ROOT / "scripts/docs/architecture.py"], check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        self.assertGreaterEqual(made.count("<circle"), 25)
        self.assertEqual((ROOT / "docs/images/architecture.svg").read_text(), made, "run scripts/docs.sh --architecture")

    def test_quoted_functions_are_the_code(self):
        page = (ROOT / "docs/architecture.md").read_text()
        made, count = architecture.quoted(page)
        self.assertGreaterEqual(count, 4)  # a step of each kind
        self.assertEqual(page, made, "run scripts/docs.sh --architecture")

    def test_the_site_builds_and_every_link_leads_somewhere(self):
        done = subprocess.run([ROOT / "scripts/docs.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
        self.assertEqual(pages - {path.stem for path in (ROOT / "build/site").glob("*.html")}, set())

    def test_links_of_the_readme_lead_somewhere(self):
        links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
        self.assertGreaterEqual(len(links), 15)
        for link in links:
            self.assertTrue((ROOT / link).exists(), link)


if __name__ == "__main__":
    harness.main()
