"""Space files: YAML, checked against the flags of the installed vLLM, into a `Problem`. See docs/spaces.md.

A run keeps the two texts (`Sources`) and parses them again on --resume, so everything here works on text too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from autotune.errors import UserError
from autotune.spec.backlog import backlog_notices
from autotune.spec.catalogue import Catalogue, release
from autotune.spec.config import EngineConfig, FlagValue
from autotune.spec.dimensions import Draft, draft_space, finish_space
from autotune.spec.flag_values import FlagReader
from autotune.spec.goals import parse_budget, parse_objectives, parse_slos
from autotune.spec.objective import Budget, Objective, Slo
from autotune.spec.problem import Problem
from autotune.spec.rules import Rule
from autotune.spec.satisfiable import RuleProblem, check_rules
from autotune.spec.schema import validated
from autotune.spec.shipped import resolve_space, resolve_workload
from autotune.spec.space import SearchSpace
from autotune.spec.workload import Workload
from autotune.spec.workload_file import parse_workload, read_text
from autotune.spec.yaml_text import Document, parse_yaml

log = logging.getLogger(__name__)

_FAR_MORE = 2
"""A pinned max-model-len beyond this many times the workload's longest request is worth a notice."""


class _Budget(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    gpu_time: Any = None
    wall_time: Any = None
    trials: Any = None


class _Space(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1)]
    workload: Annotated[str, Field(min_length=1)] | None = None
    vllm: str | None = None
    fixed: dict[str, Any] = {}
    env: dict[str, Any] = {}
    search: dict[str, Any] = {}
    bundles: dict[str, Any] = {}
    rules: list[str] = []
    objectives: dict[str, Any] = {}
    slos: dict[str, Any] = {}
    budget: _Budget | None = None
    incumbent: dict[str, Any] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The texts a problem is made from, and what to call them in errors."""

    space_text: str
    workload_text: str
    space_file: Path
    workload_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the command line may say instead of the file; None = as the file has it."""

    model: str | None = None
    seed: int | None = None
    gpu_s: float | None = None
    wall_s: float | None = None
    trials: int | None = None


def read_sources(space: str | Path, workload: str | Path | None = None) -> Sources:
    """`space` and `workload` are paths or names of shipped ones; without `workload` the space's own is taken.

    Raises UserError when one can't be found or read.
    """
    space_file = resolve_space(space)
    space_text = read_text(space_file, what="space")
    if workload is None:
        document = parse_yaml(space_text, file=space_file)
        named = document.value.get("workload")
        if not isinstance(named, str) or not named:
            raise document.error(
                "the space names no workload",
                "workload",
                value=named,
                remedy="add workload: chat (`vtune workloads` lists the shipped ones), or give --workload",
            )
        try:
            workload_file = resolve_workload(named, beside=space_file.parent)
        except UserError as problem:
            raise document.error(problem.problem, "workload", value=named, remedy=problem.remedy) from None
    else:
        workload_file = resolve_workload(workload)
    return Sources(
        space_text=space_text,
        workload_text=read_text(workload_file, what="workload"),
        space_file=space_file,
        workload_file=workload_file,
    )


def load_problem(
    space: str | Path,
    *,
    catalogue: Catalogue,
    workload: str | Path | None = None,
    allow_quality_loss: bool = False,
    allow: Collection[str] = (),
    overrides: Overrides | None = None,
) -> Problem:
    """Reads and checks a space and its workload. `allow` names gated dimensions to search nevertheless.

    Raises UserError, naming file, line, key, value and remedy, for everything that can't be used.
    """
    return parse_problem(
        read_sources(space, workload),
        catalogue=catalogue,
        allow_quality_loss=allow_quality_loss,
        allow=allow,
        overrides=overrides,
    )


def parse_problem(
    sources: Sources,
    *,
    catalogue: Catalogue,
    allow_quality_loss: bool = False,
    allow: Collection[str] = (),
    overrides: Overrides | None = None,
) -> Problem:
    """The same from texts that were read before. The same texts and catalogue always give the same problem."""
    changed = overrides or Overrides()
    workload = parse_workload(sources.workload_text, file=sources.workload_file)
    document = parse_yaml(sources.space_text, file=sources.space_file)
    given = validated(_Space, document)
    _check_version(given.vllm, catalogue, document)
    reader = FlagReader(catalogue=catalogue, document=document, model_length=workload.model_length)
    draft = draft_space(reader, fixed=given.fixed, env=given.env, search=given.search, bundles=given.bundles)
    dimensions, pinned, notices = finish_space(draft, reader, allow_all=allow_quality_loss, allow=allow)
    space = SearchSpace(
        name=given.name,
        model=changed.model or given.model,
        dimensions=dimensions,
        fixed=draft.fixed,
        fixed_env=draft.fixed_env,
        rules=tuple(_rule(text, place, reader) for place, text in enumerate(given.rules)),
    )
    _check_nothing_to_search(space, pinned, document)
    defaults = catalogue.defaults()
    _check_rules(space, defaults, document)
    notices += _check_model_length(draft, workload, document)
    objectives, slos = parse_objectives(given.objectives, document), parse_slos(given.slos, document)
    _check_goodput(objectives, slos, workload, document)
    notices += backlog_notices(space, workload, objectives=objectives, slos=slos, defaults=defaults)
    for notice in notices:
        log.info("%s", notice)
    budget = parse_budget(given.budget.model_dump() if given.budget else None, document)
    return Problem(
        space=space,
        workload=workload,
        objectives=objectives,
        slos=slos,
        budget=_overridden(budget, changed),
        seed=given.seed if changed.seed is None else changed.seed,
        incumbent=_incumbent(given.incumbent, space, reader),
        pinned=pinned,
        space_file=sources.space_file,
        workload_file=sources.workload_file,
        defaults=defaults,
        notices=notices,
    )


def _overridden(budget: Budget, changed: Overrides) -> Budget:
    if changed.gpu_s is not None or changed.wall_s is not None:  # a time given by hand replaces the file's times
        budget = replace(budget, gpu_s=changed.gpu_s, wall_s=changed.wall_s)
    return budget if changed.trials is None else replace(budget, trials=changed.trials)


def _rule(text: str, place: int, reader: FlagReader) -> Rule:
    try:
        rule = Rule(text=text)
    except ValueError as problem:
        raise reader.document.error(
            str(problem), "rules", place, value=text, remedy="write for example max-num-batched-tokens >= max-num-seqs"
        ) from None
    if not rule.names:
        raise reader.document.error(
            "this rule reads no flag", "rules", place, value=text, remedy="name the flags it is about, or remove it"
        )
    for name in sorted(rule.names):
        reader.flag(name, "rules", place, value=text)
    return rule


def _check_rules(space: SearchSpace, defaults: Mapping[str, FlagValue], document: Document) -> None:
    try:
        check_rules(space, defaults)
    except RuleProblem as problem:
        if problem.rule is None:
            raise document.error(
                problem.problem, "rules", value="; ".join(rule.text for rule in space.rules), remedy="relax one of them"
            ) from None
        place = next(place for place, rule in enumerate(space.rules) if rule is problem.rule)
        raise document.error(
            problem.problem,
            "rules",
            place,
            value=problem.rule.text,
            remedy=f"widen {' or '.join(sorted(problem.rule.names))}, or change the rule",
        ) from None


def _check_nothing_to_search(space: SearchSpace, pinned: tuple[str, ...], document: Document) -> None:
    if space.dimensions:
        return
    if pinned:
        raise document.error(
            "everything that is searched here may change the model's answers",
            "search",
            value=", ".join(pinned),
            remedy="add a flag that doesn't, or allow it with --allow-quality-loss",
        )
    raise document.error(
        "there is nothing to search",
        "search",
        remedy="give at least one flag two values, such as max-num-seqs: [64, 256]",
    )


def _check_goodput(
    objectives: Sequence[Objective], slos: Sequence[Slo], workload: Workload, document: Document
) -> None:
    """A goodput search needs limits that a high rate breaks; its figure needs a goodput search."""
    metric = "max_rate_within_slo_rps"
    searched = workload.goodput_search is not None
    for section, wanted in (("objectives", [o.metric for o in objectives]), ("slos", [slo.metric for slo in slos])):
        if metric in wanted and not searched:
            raise document.error(
                f"{metric} is what a goodput search finds, and workload {workload.name} makes none",
                section,
                metric,
                remedy="add `goodput_search: {requests: 100}` to the workload, or take another metric",
            )
    if searched and not any(not slo.at_least for slo in slos):
        raise document.error(
            f"workload {workload.name} searches the highest rate within the SLOs, and there is no limit it could break",
            "slos",
            remedy="add one, such as ttft_p99: 2 s, or take `goodput_search` out of the workload",
        )


def _check_model_length(draft: Draft, workload: Workload, document: Document) -> tuple[str, ...]:
    """A request longer than max-model-len is refused; a max-model-len far above need starves the KV cache. A text may
    come out longer than planned: the sum of its planned lengths leaves no room for that."""
    need = workload.longest_request_tokens
    section, values = draft.values_of("max-model-len")
    lengths = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    short = [value for value in lengths if value < need]
    if short:
        raise document.error(
            f"the longest request of workload {workload.name} has {need} tokens, so this engine would refuse it",
            section,
            "max-model-len",
            value=min(short),
            remedy="write max-model-len: from-workload",
        )
    if not values:
        return (
            f"max-model-len isn't given, so the model's own maximum holds; workload {workload.name} needs {need} "
            "tokens. Where KV cache is short, fix it: max-model-len: from-workload",
        )
    tight = [value for value in lengths if value < workload.model_length]
    if tight and not workload.exact:
        few = ", ".join(str(value) for value in dict.fromkeys(tight))
        return (
            f"max-model-len {few} is too tight for workload {workload.name}: its prompts are texts, whose tokens the "
            f"server's tokenizer and chat template decide, and prompt and answer are planned with {need}. Longer ones "
            f"would be refused. Write {workload.model_length} or more, or max-model-len: from-workload",
        )
    if lengths and min(lengths) > _FAR_MORE * need:
        return (
            f"max-model-len is {min(lengths)} or more, but workload {workload.name} needs {need} tokens: the KV cache "
            "is planned for requests that never come. Consider max-model-len: from-workload",
        )
    return ()


def _incumbent(given: Mapping[str, Any] | None, space: SearchSpace, reader: FlagReader) -> EngineConfig | None:
    """The space's fixed flags with the incumbent's own on top; `null` takes a fixed one away."""
    if given is None:
        return None
    own = reader.flags({name: value for name, value in given.items() if name != "model"}, "incumbent")
    model = given.get("model", space.model)
    if not isinstance(model, str):
        raise reader.document.error("a model is text", "incumbent", "model", value=model, remedy="write its name")
    flags = {name: value for name, value in {**space.fixed, **own}.items() if value is not None}
    return EngineConfig(model=model, flags=flags, env=dict(space.fixed_env))


_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)")


def _check_version(wanted: str | None, catalogue: Catalogue, document: Document) -> None:
    if wanted is None:
        return
    clauses = [clause.strip() for clause in wanted.split(",")]
    have = release(catalogue.vllm_version)
    for clause in clauses:
        match = _CLAUSE.fullmatch(clause)
        if match is None:
            raise document.error(
                "a version is asked for as in '>=0.20,<0.40'", "vllm", value=wanted, remedy="write vllm: '>=0.20'"
            )
        sign, limit = match.group(1), release(match.group(2))
        length = max(len(have), len(limit))
        left, right = (part + (0,) * (length - len(part)) for part in (have, limit))
        fits = {
            ">=": left >= right,
            "<=": left <= right,
            "==": left == right,
            "!=": left != right,
            ">": left > right,
            "<": left < right,
        }[sign]
        if not fits:
            raise document.error(
                f"this space asks for another vLLM than {catalogue.vllm_version} in {catalogue.python}",
                "vllm",
                value=wanted,
                remedy="choose an interpreter with --vllm-python, or change this line",
            )
