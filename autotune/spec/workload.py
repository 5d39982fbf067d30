"""What is sent to an engine and when: request shapes, arrivals, and the rungs (stretches of load) of one trial."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import assert_never

from autotune.spec.trace import Trace

_TEXT_MARGIN, TEMPLATE_TOKENS = 0.05, 64
"""How much longer texts may come out of the tokenizer and its chat template than was planned: the larger of both."""

_BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLength:
    """Log-normal with the given median and sigma of the log, clipped to [low, high]."""

    median: float
    sigma: float
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalLength:
    """`values` as they were seen, each drawn in proportion to its weight."""

    values: tuple[int, ...]
    weights: tuple[float, ...]


Lengths = FixedLength | UniformLength | LogNormalLength | EmpiricalLength


def longest(lengths: Lengths) -> int:
    match lengths:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(high=high) | LogNormalLength(high=high):
            return high
        case EmpiricalLength(values=values):
            return max(values)
        case _:
            assert_never(lengths)


def mean(lengths: Lengths) -> float:
    """Expected length in tokens; a log-normal's is taken before clipping, then clipped."""
    match lengths:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            return (low + high) / 2
        case LogNormalLength(median=median, sigma=sigma, low=low, high=high):
            return min(max(median * math.exp(sigma**2 / 2), low), high)
        case EmpiricalLength(values=values, weights=weights):
            return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
        case _:
            assert_never(lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`concurrency` clients, each sending its next request when the last one is done."""

    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Open loop: arrivals at `rate_rps` requests per second, whatever the engine does."""

    rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaArrivals:
    """Open loop with gamma-distributed gaps. `burstiness` is their shape, as `vllm bench serve` has it: 1 is Poisson,
    below 1 requests come in bursts, above 1 more evenly."""

    rate_rps: float
    burstiness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantArrivals:
    """Open loop, one request every 1 / `rate_rps` seconds."""

    rate_rps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RampArrivals:
    """Open loop, Poisson at a rate that goes in a straight line from one to the other in `over_s`, and stays there."""

    from_rps: float
    to_rps: float
    over_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceArrivals:
    """Open loop at the trace's own timestamps, `rate_scale` times as fast. After its last row it begins again."""

    rate_scale: float = 1.0


Arrivals = ClosedLoop | Poisson | GammaArrivals | ConstantArrivals | RampArrivals | TraceArrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Every prompt begins with one of `groups` prefixes of `tokens` tokens (a system prompt, a document)."""

    tokens: int
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestForm:
    """How a request is put. `parameters` is a JSON object that goes into its body: sampling, response_format.

    A chat can't be sent as token ids: its prompts are ordinary words, of about as many tokens as asked for.
    """

    chat: bool = False
    streamed: bool = True
    parameters: str = "{}"

    @property
    def fixes_length(self) -> bool:
        """Whether an answer has exactly the length asked for: a grammar ends it where the grammar says."""
        return not {"response_format", "structured_outputs"} & json.loads(self.parameters).keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A request is the first of `turns`; each later one resends what was said so far and comes `think_s` after the
    answer to the one before."""

    turns: Lengths
    think_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """Lengths in tokens; `prompt` counts the part after the shared prefix. `n` sequences per request."""

    prompt: Lengths
    output: Lengths
    prefix: SharedPrefix | None = None
    n: int = 1
    share: float = 1.0
    form: RequestForm = RequestForm()
    conversation: Conversation | None = None

    @property
    def longest_tokens(self) -> int:
        """A conversation's last turn carries everything before it."""
        turns = longest(self.conversation.turns) if self.conversation else 1
        return (self.prefix.tokens if self.prefix else 0) + turns * (longest(self.prompt) + longest(self.output))


STRESS = "stress"
"""The rung that ends the confirmation of a configuration (`trial.stress`); no workload may call one of its own so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Load lasts until `requests` were sent and `duration_s` has passed, whichever is later; then it drains, for
    `drain_limit_s` at most (None: as long as the loader usually allows)."""

    name: str
    arrivals: Arrivals
    requests: int
    duration_s: float = 0.0
    drain_limit_s: float | None = None

    @property
    def at_once(self) -> bool:
        """Whether everything it sends is sent at its beginning, so that the engine works off a backlog."""
        clients = self.arrivals.concurrency if isinstance(self.arrivals, ClosedLoop) else 0
        return clients >= self.requests > 1 and self.duration_s == 0


GOODPUT_RUNGS = "goodput "
"""What the names of a goodput search's rungs begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputSearch:
    """How the highest rate within the SLOs is looked for in one engine: rung after rung at rates that its own answers
    suggest (`autotune.trial.goodput`). A rung lasts as `Rung` says.

    `arrivals` at which the rungs come, their rate left open; `start_rps` None: from what the reference rung showed.
    It ends once the rate is known to within `precision` (0.1: 10 %) or after `most_rungs`.
    """

    arrivals: Poisson | GammaArrivals | ConstantArrivals = Poisson(rate_rps=1.0)
    requests: int = 100
    duration_s: float = 0.0
    start_rps: float | None = None
    precision: float = 0.1
    most_rungs: int = 12

    def rung(self, number: int, rate_rps: float, *, least_s: float = 0.0) -> Rung:
        """The `number`th, from 1. `least_s`: how long it must last for its figures to be those of a filled engine."""
        return Rung(
            name=f"{GOODPUT_RUNGS}{number}",
            arrivals=replace(self.arrivals, rate_rps=rate_rps),
            requests=self.requests,
            duration_s=max(self.duration_s, least_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`shapes` are mixed by their `share`s; with a `trace` there are none. `reference_rungs` name the rungs that every
    trial is compared on; trial-level columns come from the last of them, but for what `goodput_search` finds."""

    name: str
    shapes: tuple[RequestShape, ...]
    rungs: tuple[Rung, ...]
    reference_rungs: tuple[str, ...]
    warm_up_requests: int = 8
    trace: Trace | None = None
    goodput_search: GoodputSearch | None = None

    @property
    def longest_request_tokens(self) -> int:
        """Prompt plus output of the longest possible request: the max-model-len it needs."""
        if self.trace is not None:
            return self.trace.longest_request_tokens
        return max(shape.longest_tokens for shape in self.shapes)

    @property
    def exact(self) -> bool:
        """Whether every prompt is sent as token ids, so that its length is what was asked for; a text's is what the
        server's tokenizer and chat template make of it."""
        if self.trace is not None:
            return self.trace.exact
        return not any(shape.form.chat for shape in self.shapes)

    @property
    def model_length(self) -> int:
        """The max-model-len to give an engine: the longest request, with a margin where prompts are texts, in whole
        blocks."""
        need = self.longest_request_tokens
        if not self.exact:
            need += max(math.ceil(need * _TEXT_MARGIN), TEMPLATE_TOKENS)
        return -(-need // _BLOCK_TOKENS) * _BLOCK_TOKENS

    @property
    def mean_output_tokens(self) -> float:
        """Per sequence, over the mix or the trace."""
        if self.trace is not None:
            return self.trace.mean_output_tokens
        shares = sum(shape.share for shape in self.shapes)
        return sum(shape.share * mean(shape.output) for shape in self.shapes) / shares

    @property
    def reference(self) -> Rung:
        return next(rung for rung in self.rungs if rung.name == self.reference_rungs[-1])
