"""Limits given on the command line instead of a run's own."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.errors import UserError
from autotune.spec.goals import parse_slos
from autotune.spec.objective import Slo
from autotune.spec.yaml_text import parse_yaml


def limits(texts: Sequence[str]) -> tuple[Slo, ...]:
    """ "ttft_p99: 500 ms", each as a space file has it. Raises UserError naming the text that can't be used."""
    found: list[Slo] = []
    for text in texts:
        if ": " not in text:
            raise UserError("this is no limit", key="--slo", value=text, remedy='write it as "ttft_p99: 500 ms"')
        document = parse_yaml(text, file="--slo")
        found += parse_slos(document.value, document)
    return tuple(found)
