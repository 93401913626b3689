"""Which data statistics were collected from: fingerprints that no order of records changes, and shards of records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from lowbit.numerics.errors import FormatError, InvalidProblem

_MOST_SHARDS = 1 << 16


@dataclass(frozen=True)
class Shard:
    """The shard `index`, from 1, of `of`: each record whose number, from 0, leaves the remainder index - 1.

    >>> shard = Shard.parse("2/3")
    >>> [i for i in range(7) if shard.takes(i)]
    [1, 4]
    """

    index: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.of <= _MOST_SHARDS:
            raise InvalidProblem(f"shard: {self}; expected 1/n to n/n, n at most {_MOST_SHARDS}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that "i/n" names."""
        index, slash, of = text.partition("/")
        if not (slash and index.isdecimal() and of.isdecimal() and len(text) < 20):
            raise InvalidProblem(f"shard: {text!r}; expected i/n, such as 1/3, 2/3 and 3/3 for three processes")
        return cls(int(index), int(of))

    def takes(self, record: int) -> bool:
        """Whether the record of this number, from 0, is in the shard."""
        return record % self.of == self.index - 1

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


@dataclass(frozen=True, order=True)
class DataPart:
    """The part of a set of records that statistics were collected from: shards `parts` of `of`, in rising order.

    digest: of all records of the set, in any order. records: how many these are. order: a digest of their order, which
    decides what is in a shard; empty where all shards are there.
    """

    digest: str
    records: int
    of: int = 1
    parts: tuple[int, ...] = (1,)
    order: str = ""

    @property
    def missing(self) -> list[str]:
        """The shards that are not there."""
        return [f"{i}/{self.of}" for i in range(1, self.of + 1) if i not in self.parts]

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        made: dict[str, Any] = {"digest": self.digest, "records": self.records}
        return made if self.of == 1 else made | {"order": self.order, "of": self.of, "parts": list(self.parts)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> DataPart:
        """The part of `to_dict`; FormatError for any other mapping."""
        try:
            made = cls(
                found["digest"], found["records"], found.get("of", 1), tuple(found.get("parts", (1,))),
                found.get("order", ""),
            )  # fmt: skip
            numbers, texts = (made.records, made.of, *made.parts), (made.digest, made.order)
            if not all(type(n) is int for n in numbers) or not all(isinstance(t, str) for t in texts):
                raise ValueError("numbers and texts")
            shards = [Shard(part, made.of).index for part in made.parts]
            if made.records < 1 or not shards or shards != sorted(set(shards)) or (made.of > 1) != bool(made.order):
                raise ValueError("shards in rising order")
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"data: {str(dict(found))[:200]}; not a set of records ({error})") from None
        return made


class DataDigest:
    """A fingerprint of records, each a mapping from names to arrays.

    >>> digest, turned = DataDigest(), DataDigest()
    >>> rows = [{"ids": np.array([i, 2])} for i in range(3)]
    >>> for row, other in zip(rows, reversed(rows)):
    ...     digest.add(row)
    ...     turned.add(other)
    >>> digest.part() == turned.part(), digest.part(Shard(1, 2)) == turned.part(Shard(1, 2))
    (True, False)
    """

    def __init__(self) -> None:
        self._records: list[bytes] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record: names, dtypes, shapes and values count."""
        found = hashlib.sha256()
        for name in sorted(record):
            array = np.asarray(record[name])
            if array.dtype.kind in "OSU":  # texts
                values = json.dumps(array.tolist(), default=repr).encode()
                about = [name, "text", array.shape, len(values)]
            else:
                values = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
                about = [name, array.dtype.newbyteorder("<").str, array.shape, len(values)]
            found.update(json.dumps(about).encode() + values)
        self._records.append(found.digest())

    def part(self, shard: Shard | None = None) -> DataPart:
        """All of the records, or a shard of them."""
        shard = shard or Shard()
        if len(self) < shard.of:
            have = "1 record" if len(self) == 1 else f"{len(self)} records"
            raise InvalidProblem(f"shard: {shard}; the data have {have}, and each shard needs one; take fewer shards")
        digest, order = (hashlib.sha256(b"".join(r)).hexdigest() for r in (sorted(self._records), self._records))
        return DataPart(digest, len(self), shard.of, (shard.index,), "" if shard.of == 1 else order)


def joined(parts: Iterable[DataPart]) -> tuple[DataPart, ...]:
    """The parts as few as possible, in an order of their own; InvalidProblem where records would count twice.

    >>> joined([DataPart("d", 9, 3, (3,), "o"), DataPart("d", 9, 3, (1,), "o")])
    (DataPart(digest='d', records=9, of=3, parts=(1, 3), order='o'),)
    """
    made = []
    for _, same in groupby(sorted(parts), lambda part: part.digest):
        first, *others = same
        for other in others:
            if (other.of, other.order) != (first.of, first.order):
                what = f"1/{first.of} and 1/{other.of}" if first.of != other.of else "the same data in another order"
                raise InvalidProblem(f"data: shards of {what}; records could count twice; expected shards of one cut")
            twice = sorted({*first.parts} & {*other.parts})
            if twice:
                which = "the same data" if first.of == 1 else f"shard {twice[0]}/{first.of}"
                raise InvalidProblem(f"data: {which} twice; expected each record once")
            first = replace(first, parts=tuple(sorted(first.parts + other.parts)))
        made.append(DataPart(first.digest, first.records) if not first.missing else first)
    return tuple(made)
