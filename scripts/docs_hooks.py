"""Hooks of mkdocs, and an extension of griffe, which reads the docstrings.

Links out of docs/, to sources and results, become plain text, as the site has no such pages. Lines of a docstring that
begin with the name of a parameter and a colon become a list.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

import griffe

FENCE = re.compile(r"(^```.*?^```[ ]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s:]+)\)")


class Parameters(griffe.Extension):
    """Lists of parameters."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring:
            names = "|".join(re.escape(parameter.name) for parameter in func.parameters)
            start = rf"(?:{names})(?:(?:, | and )(?:{names}))*"
            one = re.compile(rf"(?:^|(?<=\. ))({start}): (?=\S)", re.MULTILINE)
            func.docstring.value = one.sub(r"\n- **\1**: ", func.docstring.value) if names else func.docstring.value


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def text_of(link: re.Match[str]) -> str:
        leaves = posixpath.normpath(posixpath.join(folder, link[2])).startswith("..")
        return link[1] if leaves else link[0]

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(text_of, part) for part in parts)
