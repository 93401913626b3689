"""Find phrases that are not the field's terms; docs/glossary.md has the terms.

    python scripts/check_language.py                    src, core, docs, README.md, CHANGELOG.md, CONTRIBUTING.md
    python scripts/check_language.py src/lowbit/torch   some files or folders
    python scripts/check_language.py --list core        the findings as well, but exit code 0
    python scripts/check_language.py --rules            what is searched for, and what to write instead

A phrase is also found across a line break.
"""

from __future__ import annotations

import argparse
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATHS = ["src", "core", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
SUFFIXES = {".py", ".cc", ".h", ".inc", ".md", ".yaml", ".toml", ".mk"}
# The glossary names the phrases to avoid; the architecture page explains its metaphors; stubs are generated.
SKIPPED = {"docs/glossary.md", "docs/internals/architecture.md", "src/lowbit/_core.pyi"}

AMOUNT = (
    r"(?:bits?|bytes?|scales?|sets?|filters?|zero points?|widths?|dB|(?:milli)?seconds?|[mnµ]s|operations|[GM]B|GOPS"
    r"|FLOPS?|products?|multiplications?|loads?|numbers?|codes?|times|cycles?|calls?|steps?|rows|kernels?|files?|ranges?)"
)
UNIT = (
    r"(?:channel|element|second|row|column|cycle|product|code|weight|call|group|block|token|step|sum|operation|command"
    r"|output|tile|thread|octave)"
)

# Halves of a register or a range, not 16-bit floats.
PARTS = "".join(f"(?<!{word} )" for word in ("both", "two", "other", "lower", "upper", "low", "high"))
# Where "finish" and "outcome" in a name mean the epilogue.
COMPUTE = ("core", *(f"src/lowbit/{name}" for name in ("runtime", "ops", "layers", "plans", "gpu", "torch")))


@dataclass(frozen=True)
class Rule:
    """A regular expression, matched without regard to case, and what to write in its place."""

    pattern: str
    instead: str
    only: tuple[str, ...] = ()  # the folders it is meant for; all if empty


RULES = [
    Rule(r"\bask(?:s|ed|ing)? (?:for )?(?:\w+ ){0,5}ahead\b", "prefetch"),
    Rule(r"\basked for (?:early|once|twice|a second time)\b", "prefetch"),
    Rule(r"\b(?:first|second|third|nearest|last)[ _-]caches?\b", "L1, L2, L3"),
    Rule(r"\bfrom row to row\b", "row stride"),
    Rule(r"\broomy\b|(?<![a-z])roomy|roomy_", "a named size: L1 of 48 KiB or more"),
    Rule(r"\bcrowd(?:s|ed|ing)?\b|(?<=_)crowd(?:s|ed|ing)?|\bcrowd(?:s|ed|ing)?(?=_)", "aliasing, 4 KiB aliasing"),
    Rule(r"\bwhat becomes of\b|\bwhat became of\b", "epilogue, result"),
    Rule(r"\bwhat (?:the )?sums begin with\b|\bsums? begins? with\b", "the accumulators' initial values"),
    Rule(r"\b(?:finish|outcome)_\w+|\b[a-z]\w*_(?:finish|outcome)s?\b", "epilogue", COMPUTE),
    Rule(
        r"\b\w*(?-i:Finish|Outcome)[A-Z]\w*|\b\w+(?-i:Finish|Outcome)s?\b|\b(?:finish|outcome)\(",
        "epilogue",
        COMPUTE,
    ),
    Rule(
        r"\bfinish(?:es|ed|ing)? (?:a row|rows|the row|the sums?|sums?|tiles|the tile|row by row|it row)\b",
        "apply the epilogue",
    ),
    Rule(r"\boutcomes?\b", "epilogue, result", ("core",)),
    Rule(rf"{PARTS}\bhalves\b(?! (?:to|away|up|upwards|of)\b)", "float16 and bfloat16, 16-bit floats"),
    Rule(rf"\b{AMOUNT} an? {UNIT}\b", "per channel, per element, per second"),
    Rule(r"\bhold(?:s|ing)? (?:\w+ ){0,3}against\b|\bheld (?:\w+ ){0,2}against\b", "compare with, baseline, ratio"),
    Rule(r"\bgets? no time\b|\bgot no time\b", "is disqualified"),
    Rule(r"\bthere is nothing left\b", "exhausted"),
    Rule(r"\bremember(?:s|ed|ing)?\b", "cache, cached"),
    Rule(r"\bwritten past the caches?\b|\bpast the caches?\b", "non-temporal store"),
    Rule(r"\bwhich kernels run where\b", "dispatch"),
    Rule(r"\bsupposed\b|\bknown of\b|\bnothing is known\b", "measured, estimated, not verified"),
    Rule(r"(?<![.\w])strips? of\b|(?<![.\w\"'])strips\b(?!\()", "tile, panel"),
    Rule(r"\bpieces?\b", "tile, block, part", ("core", "docs", "src/lowbit/ops", "src/lowbit/layers")),
    Rule(r"\ba piece at a time\b", "a block at a time"),
    Rule(r"\bblocks? of (?:\w+ )?columns\b", "panel"),
    Rule(r"\bwhat is left\b", "tail, remainder"),
    Rule(r"\bproducts? of codes\b", "integer matrix product"),
    Rule(r"\bfront desk\b|\bdesks?\b|\bdoors?\b|\brooms\b|\bevery room\b", "no metaphors: name the module"),
    Rule(r"\bas it was before\b|\bas before, (?:a|the|it)\b|\bit used to\b", "no history in docs and comments"),
    Rule(r"\btells? of\b|\btold of\b", "describes, documents"),
    Rule(
        r"\b(?:of|for|least|most|to|until|used) so (?:many|few|much)\b|\bso many (?:\w+ ){0,2}at a time\b",
        "say how many",
    ),
    Rule(r"\bnobody asks\b|\bwhen somebody asks\b", "say which code asks, and when"),
]


def files(arguments: list[str]) -> Iterator[Path]:
    for argument in arguments:
        path = Path(argument) if Path(argument).exists() else ROOT / argument
        if not path.exists():
            raise SystemExit(f"{argument}: no such file or folder")
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and (file.suffix in SUFFIXES or file == path) and "__pycache__" not in file.parts:
                yield file.resolve()


def findings(path: Path) -> list[tuple[int, str, str]]:
    """Line, phrase and what to write instead."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
    if name in SKIPPED:
        return []
    # Lines without indentation and comment signs, joined, so that a phrase is found across a line break.
    lines = [
        re.sub(r"^\s*(?://+|#+|\*)?\s*", "", line.rstrip()) for line in path.read_text(encoding="utf-8").split("\n")
    ]
    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))
    text = " ".join(lines)
    return sorted(
        (bisect_right(starts, match.start()), match[0], rule.instead)
        for rule in RULES
        if not rule.only or name.startswith(tuple(f"{folder}/" for folder in rule.only))
        for match in re.finditer(rule.pattern, text, re.IGNORECASE)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help=f"files and folders (default: {' '.join(PATHS)})")
    parser.add_argument("--list", action="store_true", help="print the findings and exit with code 0")
    parser.add_argument("--rules", action="store_true", help="print the rules and exit")
    options = parser.parse_args()
    if options.rules:
        print("\n".join(f"{rule.instead:45} {rule.pattern}" for rule in RULES))
        return 0
    count = 0
    for path in files(options.paths or PATHS):
        for line, phrase, instead in findings(path):
            count += 1
            print(
                f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {phrase!r}; write: {instead}"
            )
    if count:
        print(f"{count} phrases that are not the field's terms (docs/glossary.md)", file=sys.stderr)
    return 1 if count and not options.list else 0


if __name__ == "__main__":
    sys.exit(main())
