"""What was measured, as rows: a contender of a case each, with the verdicts on its targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

from benchmarks.timing import Absent, Case, Contender, GroupTarget, Target, Timing

Found = Mapping[Contender, Timing | Absent]


@dataclass(frozen=True)
class Verdict:
    """A target, what was measured, and whether that is enough; None where it was not judged."""

    text: str
    measured: float | None
    met: bool | None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One contender of one case. All ratios are of speeds: above 1 the first named is the faster."""

    family: str
    case: str
    contender: str
    kind: str  # lowbit, peer, copy, limit, or mean: over the cases of a group target
    status: str  # measured, missing (a peer), failed (lowbit) or not measurable
    reason: str = ""
    seconds: float | None = None  # best
    spread: float | None = None  # interquartile range over median
    preempted: bool = False  # other work had the CPU even in the best sample
    nbytes: int = 0  # read + written
    operations: int = 0
    roofline_percent: float | None = None  # of the fastest limit of the case, else of the copy
    mean: float | None = None  # of a group: how many times as fast as the best of the others lowbit is
    slower: list[str] = field(default_factory=list)  # cases of a group in which lowbit is the slower
    targets: list[Verdict] = field(default_factory=list)

    @property
    def absence(self) -> str:
        """Why there are no figures."""
        return self.reason if self.status == "not measurable" else f"{self.status}: {self.reason}"


def rows_of(family: str, case: Case, found: Found, threads: int) -> list[Row]:
    if case.not_measurable:
        return [Row(family, case.name, "lowbit", "lowbit", "not measurable", case.not_measurable)]
    timings = {c: t for c, t in found.items() if isinstance(t, Timing)}
    copies = {c.nbytes: t for c, t in timings.items() if c.kind == "copy"}
    others = {c.name: t for c, t in timings.items() if c.kind != "copy"}
    limit = min((t.best for c, t in timings.items() if c.kind == "limit"), default=None)
    rows = []
    for contender, result in found.items():
        nbytes = contender.nbytes or case.nbytes
        common = (family, case.name, contender.name, contender.kind)
        verdicts = [
            _verdict(
                t,
                others.get(t.contender),
                copies.get(nbytes) if t.against == "copy" else _fastest(t.against, others),
                case.doubt,
            )
            for t in case.targets
            if t.contender == contender.name and (threads == 1 or t.any_threads)
        ]
        if isinstance(result, Absent):
            status = {"peer": "missing", "limit": "not measurable"}.get(contender.kind, "failed")
            rows.append(Row(*common, status, result.reason, nbytes=nbytes, targets=verdicts))
            continue
        seconds, copy = result.best, copies[nbytes].best if nbytes in copies else None
        roof = limit or copy
        rows.append(
            Row(
                *common,
                "measured",
                seconds=seconds,
                spread=result.spread,
                preempted=result.was_preempted,
                nbytes=nbytes,
                operations=case.operations,
                roofline_percent=100 * roof / seconds if roof else None,
                targets=verdicts,
            )
        )
    return rows


@dataclass(frozen=True)
class Member:
    """What a case has to say on a group target. A ratio is None where one of the two was not measured."""

    target: GroupTarget
    case: str
    ratio: float | None = None
    preempted: bool = False


def members_of(case: Case, found: Found) -> list[Member]:
    timings = {c.name: t for c, t in found.items() if isinstance(t, Timing)}
    members = []
    for target in case.group_targets:
        ours, theirs = timings.get(target.contender), _fastest(target.against, timings)
        if ours is None or theirs is None:
            members.append(Member(target, case.name))
        else:
            preempted = ours.was_preempted or theirs.was_preempted
            members.append(Member(target, case.name, theirs.best / ours.best, preempted))
    return members


def group_rows(family: str, members: Sequence[Member], threads: int) -> list[Row]:
    """A row for every group target. They are judged where all of its cases were measured, on one thread."""
    targets = dict.fromkeys(member.target for member in members)
    return [_group_row(family, t, [m for m in members if m.target == t], threads) for t in targets]


def _group_row(family: str, target: GroupTarget, members: Sequence[Member], threads: int) -> Row:
    ratios = {m.case: m.ratio for m in members if m.ratio is not None}
    mean = geometric_mean(ratios.values()) if ratios else None
    common = (family, f"{target.name}, {len(members)} cases", target.contender, "mean")
    if len(ratios) < len(members):
        note = f"not judged: {len(members) - len(ratios)} of {len(members)} cases were not measured"
    elif 2 * sum(m.preempted for m in members) > len(members):
        note = "not judged: busy machine, most cases were preempted"
    else:
        note = ""
    met = None if mean is None or note else mean >= target.at_least
    verdict = Verdict(f"mean ≥ {target.at_least:g}× {target.label}", mean, met, note)
    verdicts = [verdict] if threads == 1 else []
    if mean is None:
        return Row(*common, "not measurable", "no case was measured", targets=verdicts)
    slower = [f"{case} ({ratio_text(ratio)})" for case, ratio in ratios.items() if ratio < 1]
    return Row(
        *common,
        "measured",
        mean=mean,
        slower=slower if target.lists_slower else [],
        targets=verdicts,
    )


def _fastest(names: str | tuple[str, ...], timings: Mapping[str, Timing]) -> Timing | None:
    among = [timings[name] for name in ((names,) if isinstance(names, str) else names) if name in timings]
    return min(among, key=lambda timing: timing.best, default=None)


def _verdict(target: Target, ours: Timing | None, theirs: Timing | None, doubt: str) -> Verdict:
    """A disturbance makes slower: it casts doubt on a target met against a disturbed peer, and on one missed
    by a disturbed lowbit, and on nothing else."""
    text = f"≥ {target.at_least:g}× {target.label}"
    if ours is None or theirs is None:
        return Verdict(text, None, None, "not measured")
    ratio = theirs.best / ours.best
    met = ratio >= target.at_least
    if met and theirs.was_preempted:
        doubt = f"busy machine, {target.label} was preempted"
    elif met:
        doubt = ""
    elif ours.was_preempted:
        doubt = "busy machine, lowbit was preempted"
    if doubt:
        return Verdict(text, ratio, None, f"{ratio_text(ratio)}, not judged: {doubt}")
    return Verdict(text, ratio, met)


def ratio_text(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
