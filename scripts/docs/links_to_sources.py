# SPDX-License-Identifier: MIT
"""Links from a page to files of the repository outside docs/: the site has no such pages, so they become the file's name."""
import pathlib
import re

from mkdocs.exceptions import PluginError

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)[^)]*\)")


def on_page_markdown(markdown, page, **_):
    def name(match):
        if not (ROOT / match.group(2)).exists():
            raise PluginError(f"{page.file.src_path}: links to {match.group(2)}, which does not exist")
        return f"`{match.group(2)}`"
    return LINK.sub(name, markdown)
