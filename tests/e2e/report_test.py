# SPDX-License-Identifier: MIT
"""`dalle2-train report`: the page of a run, finished, running or killed; in Chromium too, if it is installed."""
import json
import re
import shutil
import subprocess
import unittest

import harness
from harness import EndToEnd, run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Report(EndToEnd):
    def report(self, *arguments, check=0):
        return run("report", *arguments, cwd=self.dir, check=check)

    def test_a_run_becomes_a_page_that_loads_nothing(self):
        self.train(self.config(train={"epochs": 2}))
        self.assertIn(f"--out pages/report.html: there is no folder pages (relative to {self.dir})",
                      self.report("out", "--out", "pages/report.html", check=2).stderr)
        self.assertFalse((self.dir / "pages").exists())
        (self.dir / "pages").mkdir()
        self.assertRegex(self.report("out", "--out", "pages/report.html").stdout, r"pages/report.html: [\d.]+ [KM]iB")
        page = (self.dir / "pages/report.html").read_text()
        for place in re.findall(r'(?:src|href)="([^"]*)"', page):
            self.assertTrue(place.startswith("data:"), place)
        # two epochs, two pictures of each split
        self.assertEqual(len(re.findall('<img [^>]*src="data:image/png;base64,', page)), 2 * 2 * 2)
        for text in ("Training Loss", "Validation Loss", "Learning Rate", "Grad Norm", "EMA Decay", "Samples per second", "Time of a step", "Memory",
                     "dim_mults", "Samples Seen", "Train: ", "Test: "):
            self.assertIn(text, page)

    def test_what_cannot_be_reported_or_written_is_told(self):
        (self.dir / "empty").mkdir()
        self.assertIn("empty: holds no log.jsonl", self.report("empty", "--out", "x.html", check=3).stderr)
        self.assertIn("--out is required", self.report("empty", check=2).stderr)
        (self.dir / "empty/log.jsonl").write_text("")
        self.assertIn("expected a name that ends in .html", self.report("empty", "--out", "empty/log.jsonl", check=2).stderr)
        self.assertIn("whole number from 1", self.report("empty", "--out", "x", "--picture-steps", 0, check=2).stderr)
        self.assertFalse((self.dir / "x.html").exists())
        (self.dir / "own.html").write_text("<html>a page of mine</html>")
        self.assertIn("--out own.html: the file exists, and is no report of a run",
                      self.report("empty", "--out", "own.html", check=2).stderr)
        self.assertEqual((self.dir / "own.html").read_text(), "<html>a page of mine</html>")
        for _ in range(2):  # a report is made again
            self.report("empty", "--out", "again.html", check=0)

    def in_chromium(self, name, script, *flags):
        """Runs a script at the end of the page. @return the title that it gave the page"""
        page = self.dir / name
        page.write_text(page.read_text().replace("</body>", f"<script>{{{script}}}</script></body>"))
        done = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1300,2000",
             f"--user-data-dir={self.dir}/profile", *flags, "--dump-dom", page.as_uri()],
            capture_output=True, text=True, timeout=120)
        self.assertNotIn("CONSOLE", done.stderr)
        return re.search(r"<title>(.*?)</title>", done.stdout, re.S).group(1)

    @unittest.skipUnless(CHROMIUM, "Chromium is not installed")
    def test_chromium_shows_the_page_without_an_error(self):
        self.train(self.config(train={"epochs": 2, "n_sample_images": 1}))
        self.report("out", "--out", "report.html")
        # The pointer over the first chart, then what it shows as the title; a click opens a picture.
        title = self.in_chromium("report.html", """
            const chart = document.querySelector("svg"), box = chart.getBoundingClientRect();
            chart.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + 9}));
            const tip = document.querySelector(".tip"), told = tip.hidden ? "nothing" : tip.innerText;
            chart.dispatchEvent(new PointerEvent("pointerleave"));
            document.querySelector(".pictures img").click();
            document.title = [told, tip.hidden, document.querySelector("dialog").open, box.width > 300].join("|");""")
        self.assertRegex(title, r"^step\s+\d+\s+Unet 0\s+[\d.]+\|true\|true\|true$")

    @unittest.skipUnless(CHROMIUM, "Chromium is not installed")
    def test_charts_zoom_and_compare(self):
        for name, factor in (("one", 1), ("<b>other</b></script>", 2)):
            (self.dir / name).mkdir(parents=True)
            with open(self.dir / name / "log.jsonl", "w") as log:
                for step in range(1, 101):
                    print(json.dumps({"loss\u2028": factor * step, "Seconds data": 1, "Seconds save": 3, "step": step}), file=log)
        self.report("one", "--compare", "<b>other</b></script>", "--out", "compared.html")
        title = self.in_chromium("compared.html", """
            const figure = document.querySelector("figure"), chart = figure.querySelector("svg"), box = chart.getBoundingClientRect();
            const at = (name, part) => chart.dispatchEvent(
                new PointerEvent(name, {clientX: box.left + part * box.width, clientY: box.top + 9, bubbles: true}));
            const labels = () => [...chart.querySelectorAll("text.x")].map(text => text.textContent).join(" ");
            const told = [labels()];
            at("pointerdown", 0.5), at("pointermove", 0.7), told.push(chart.querySelectorAll(".chosen").length), at("pointerup", 0.7);
            at("pointermove", 0.6);
            told.push(labels(), figure.querySelector(".tip").innerText.replaceAll("\\n", " "));
            figure.querySelectorAll(".key")[1].click();
            told.push(chart.querySelectorAll(".line").length, figure.querySelector(".reset").hidden);
            figure.querySelector(".reset").click();
            told.push(labels() === told[0], document.querySelectorAll("b b").length);
            document.title = told.join("|");""")
        self.assertEqual(title, "20 40 60 80 100|1|50 55 60 65|step 60 one 60 &lt;b&gt;other&lt;/b&gt;&lt;/script&gt; 120|1|false|true|0")


if __name__ == "__main__":
    harness.main()
