"""Hooks of mkdocs: links out of docs/, to sources and results, become plain text, as the site has no such pages."""

from __future__ import annotations

import posixpath
import re
from typing import Any

FENCE = re.compile(r"(^```.*?^```[ ]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s:]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def text_of(link: re.Match[str]) -> str:
        leaves = posixpath.normpath(posixpath.join(folder, link[2])).startswith("..")
        return link[1] if leaves else link[0]

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(text_of, part) for part in parts)
