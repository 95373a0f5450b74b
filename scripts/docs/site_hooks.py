# SPDX-License-Identifier: MIT
"""What the site has otherwise than the pages: names in place of links to files outside docs/, and nothing from another host."""
import pathlib
import re

from mkdocs.exceptions import PluginError

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)[^)]*\)")
LOADED = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\" >]+)")
WORKER = re.compile(r"<script[^>]*src=\"?https://unpkg\.com/iframe-worker/shim\"?[^>]*></script>")


def on_page_markdown(markdown, page, **_):
    def name(match):
        if not (ROOT / match.group(2)).exists():
            raise PluginError(f"{page.file.src_path}: links to {match.group(2)}, which does not exist")
        return f"`{match.group(2)}`"
    return LINK.sub(name, markdown)


def on_post_page(output, page, **_):
    script = (ROOT / "scripts/docs/worker_in_frame.js").read_text()
    output, replaced = WORKER.subn(lambda _: f"<script>{script}</script>", output)
    if not replaced:
        raise PluginError("the theme no longer loads iframe-worker: is worker_in_frame.js still needed?")
    if LOADED.search(output):
        raise PluginError(f"{page.file.src_path} loads {LOADED.search(output).group(1)}: a page loads nothing from another host")
    return output
