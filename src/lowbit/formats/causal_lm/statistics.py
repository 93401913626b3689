"""Writing statistics of a causal language model's linear layers to a folder, a decoder layer at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from lowbit.formats.causal_lm.network import LayerwiseModel
from lowbit.formats.causal_lm.observe import FIRST_TOKEN_SHARE, Progress, observe_layers
from lowbit.formats.causal_lm.text import Text, tokenized
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.formats.statistics.data import DataDigest, Shard
from lowbit.formats.statistics.fingerprint import model_fingerprint
from lowbit.formats.statistics.folder import Statistics, open_statistics
from lowbit.formats.statistics.writer import StatisticsWriter
from lowbit.numerics.errors import InvalidProblem


def observe_checkpoint(
    source: str | os.PathLike[str],
    data: Any,
    target: str | os.PathLike[str],
    *,
    gram: bool = True,
    shard: Shard | None = None,
    sequence_length: int | None = None,
    max_sequences: int | None = None,
    max_bytes: float = float("inf"),
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Statistics:
    """Run the causal language model in a checkpoint folder over text, and write moments of what each linear layer in
    its decoder layers multiplies, by the names of the weights.

    data, sequence_length, max_sequences: as for `quantize_checkpoint`. A record is a sequence; shard: of these.
    max_bytes: of a decoder layer, its moments and the hidden states. Sequences run by themselves on one thread each, so
    that the bytes written depend neither on threads nor on shards that were merged. warn: gets notes on the text before
    any work.
    """
    cut = shard or Shard()
    with Checkpoint.open(source) as checkpoint:
        model = LayerwiseModel(checkpoint)
        lengths = {"sequence_length": sequence_length, "max_sequences": max_sequences}
        text = tokenized(data, checkpoint.folder, model.vocabulary, **lengths, positions=model.positions)
        digest = DataDigest()
        for sequence in text.sequences:
            digest.add({"tokens": sequence})
        if warn is not None:
            for note in [*text.notes, *(_few_tokens(model, text) if gram else ())]:
                warn(note)
        options = {"gram": gram, "first_token_share": FIRST_TOKEN_SHARE}
        about: dict[str, Any] = {"model": model_fingerprint(source), "data": digest.part(cut), "options": options}
        with StatisticsWriter(target, **about, resume=resume, overwrite=overwrite) as writer:
            if not writer.complete:
                done = frozenset(writer.finished)
                kind = "gram" if gram else "diagonal"
                found = observe_layers(
                    model,
                    text.shard(cut.index - 1, cut.of),
                    lambda name, width: "" if name in done else kind,
                    max_bytes=max_bytes,
                    progress=progress,
                )
                for _, weights, moments in found:
                    writer.put(weights, moments)
                if not writer.finished:
                    raise InvalidProblem(f"{os.fspath(source)}: no linear layer in a decoder layer; nothing to observe")
                writer.commit()
    return open_statistics(target)


def _few_tokens(model: LayerwiseModel, text: Text) -> list[str]:
    """A note where a layer has more inputs than there are tokens, and so a singular Gram matrix."""
    widest = max((m.in_features for i in range(len(model.layers)) for m in model.linears(i).values()), default=0)
    if text.tokens >= widest:
        return []
    return [
        f"{text.tokens:,} tokens, fewer than the {widest:,} inputs of the widest layer: gptq will fit the noise of few "
        "rows; give more text, or collect --diagonal"
    ]
