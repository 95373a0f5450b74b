# SPDX-License-Identifier: MIT
"""`dalle2-train report`: the page of a run, finished, running or killed; in Chromium too, if it is installed."""
import base64
import html.parser
import json
import re
import shutil
import subprocess
import unittest

import harness
from harness import EndToEnd, records, run

VOID = {"meta", "link", "img", "br"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(html.parser.HTMLParser):
    """Titles and curves of charts, pictures, rows of tables; fails on tags that are not closed and on addresses."""
    def __init__(self, text):
        super().__init__()
        self.open, self.titles, self.pictures, self.captions, self.curves, self.text = [], [], [], [], [], []
        self.holds_data = False
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        for name in ("src", "href"):
            value = attributes.get(name, "data:")
            assert value.startswith("data:"), value
        if tag == "img" and "src" in attributes:
            self.pictures.append(base64.b64decode(attributes["src"].split(",", 1)[1]))
        self.holds_data = attributes.get("type") == "application/json"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open[-1:] == ["script"] and self.holds_data:
            for series in json.loads(data)["series"]:
                assert len(series["steps"]) == len(series["values"]) == len(series.get("means", series["steps"]))
                self.curves.append(series)
        if self.open[-2:] == ["figcaption", "b"]:
            self.titles.append(data)
        if self.open[-2:] == ["tr", "th"] and (data.startswith("Train: ") or data.startswith("Test: ")):
            self.captions.append(data)


class Report(EndToEnd):
    def report(self, *arguments, check=0):
        return run("report", *arguments, cwd=self.dir, check=check)

    def page(self, data_path="out"):
        self.report(data_path, "--out", "report.html")
        return Page((self.dir / "report.html").read_text())

    def test_a_run_becomes_a_page_that_loads_nothing(self):
        self.train(self.config(train={"epochs": 2}))
        self.assertIn(f"--out pages/report.html: there is no folder pages (relative to {self.dir})",
                      self.report("out", "--out", "pages/report.html", check=2).stderr)
        self.assertFalse((self.dir / "pages").exists())
        (self.dir / "pages").mkdir()
        self.assertRegex(self.report("out", "--out", "pages/report.html").stdout, r"pages/report.html: [\d.]+ [KM]iB")
        page = Page((self.dir / "pages/report.html").read_text())
        self.assertEqual(page.titles, ["Training Loss", "Validation Loss", "Learning Rate", "Grad Norm", "EMA Decay",
                                       "Samples per second", "Time of a step", "Memory"])
        self.assertGreaterEqual(len(page.curves), 8)
        losses = [record["Unet 0 Training Loss"] for record in records(self.dir / "out") if "Unet 0 Training Loss" in record]
        for shown, logged in zip(page.curves[0]["values"], losses, strict=True):
            self.assertAlmostEqual(shown, logged, delta=1e-5 * logged)
        # two epochs, two pictures of each split
        self.assertEqual(len(page.pictures), 2 * 2 * 2)
        self.assertTrue(all(picture.startswith(b"\x89PNG") for picture in page.pictures))
        captions = [picture["caption"] for record in records(self.dir / "out")
                    for section in ("Train Samples", "Test Samples") for picture in record.get(section, [])]
        self.assertEqual(set(page.captions), set(captions))
        text = "".join(page.text)
        self.assertIn("unets.0.dim_mults", text)
        self.assertIn("Samples Seen", text)

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
