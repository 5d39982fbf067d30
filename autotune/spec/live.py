"""Which part of a candidate a running engine can take over, and what it has to be started with for that (pure).

A live setting has a value at start that caps it: buffers, CUDA graphs and the memory profile are sized by that. So
graph sizes, compile ranges and whatever else is decided at a start are launch flags, and an engine that is to serve
several candidates is started with the most that the space asks for (docs/live-settings.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autotune.spec.config import EngineConfig, FlagValue, number_of
from autotune.spec.space import SearchSpace

CAPPED = ("max-num-seqs", "max-num-batched-tokens")
"""At most what the engine was started with."""
SWITCHED = ("enable-chunked-prefill", "enable-prefix-caching")
"""Can be turned off in an engine that was started with them."""
FREE = ("long-prefill-token-threshold", "scheduling-policy")
LIVE_FLAGS = (*CAPPED, *SWITCHED, *FREE)

_DEFAULTS: Mapping[str, FlagValue] = {
    "long-prefill-token-threshold": 0,
    "scheduling-policy": "fcfs",
    **dict.fromkeys(SWITCHED, True),
}
_OTHER_THRESHOLD = "max-num-partial-prefills"
"""Where it is above 1, vLLM chooses a long-prefill-token-threshold of its own."""
_OTHER_CAPS = "performance-mode"
"""Changes vLLM's own max-num-seqs and max-num-batched-tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSplit:
    """`flags` are changed in a running engine where it takes them; `defaults` are vLLM's own values of flags that
    aren't given; `most`: the largest values that the space has."""

    flags: frozenset[str] = frozenset(LIVE_FLAGS)
    defaults: Mapping[str, FlagValue] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, space: SearchSpace, defaults: Mapping[str, FlagValue]) -> LiveSplit:
        searched = {
            name: [v for v in space.values_of(name) if isinstance(v, int) and not isinstance(v, bool)]
            for name in CAPPED
        }
        return cls(
            defaults={k: v for k, v in defaults.items() if v is not None},
            most={name: max(values) for name, values in searched.items() if values},
        )

    def without(self, names: Collection[str]) -> LiveSplit:
        """They are launch flags from now on."""
        return replace(self, flags=self.flags - frozenset(names))

    def settings(self, config: EngineConfig) -> dict[str, FlagValue] | None:
        """The value of every live setting in an engine that is started with these flags; None where one of them is
        vLLM's to choose and not known."""
        found: dict[str, FlagValue] = {}
        for name in sorted(self.flags):
            value = self._value(config.flags, name)
            if value is None:
                return None
            found[name] = value
        return found

    def launch_key(self, config: EngineConfig) -> str:
        """The same for configurations that differ in live settings alone."""
        return replace(config, flags=self._launch_flags(config)).key

    def start_for(self, config: EngineConfig) -> EngineConfig:
        """What an engine is started with that is to measure `config` and its neighbours: `config` with its live
        settings raised to the most that the space has. `config` itself where nothing is to be raised."""
        settings = self.settings(config)
        if settings is None:
            return config
        raised: dict[str, FlagValue] = {}
        for name in CAPPED:
            most = self.most.get(name)
            if name in settings and most is not None and most > number_of(settings, name, 0.0):
                raised[name] = most
        for name in SWITCHED:
            if settings.get(name) is False:
                raised[name] = True
        return replace(config, flags={**config.flags, **raised}) if raised else config

    def reaches(self, started: EngineConfig, config: EngineConfig) -> bool:
        """Whether an engine that was started with `started` can be made to run as `config`."""
        if self.launch_key(started) != self.launch_key(config):
            return False
        at_start, wanted = self.settings(started), self.settings(config)
        if at_start is None or wanted is None:
            return started.key == config.key
        capped = all(number_of(wanted, n, 0.0) <= number_of(at_start, n, 0.0) for n in CAPPED if n in wanted)
        return capped and all(at_start[n] is True or wanted[n] is False for n in SWITCHED if n in wanted)

    def _launch_flags(self, config: EngineConfig) -> dict[str, FlagValue]:
        return {name: value for name, value in config.flags.items() if name not in self.flags and value is not None}

    def _value(self, flags: Mapping[str, FlagValue], name: str) -> FlagValue:
        given = flags.get(name)
        if isinstance(given, str) and name in CAPPED:
            return None  # "auto": vLLM's to choose
        if given is not None:
            return given
        if name == "long-prefill-token-threshold" and number_of(flags, _OTHER_THRESHOLD, 1.0) > 1:
            return None
        default = self.defaults.get(name, _DEFAULTS.get(name))
        if name in CAPPED and flags.get(_OTHER_CAPS) is not None:
            return None
        if name == "max-num-batched-tokens" and flags.get("enable-chunked-prefill") is False:
            return None  # vLLM then takes max-model-len where that is more
        batched = flags.get("max-num-batched-tokens")
        if name == "max-num-seqs" and isinstance(default, int) and isinstance(batched, int):
            return min(default, batched)  # vllm/engine/arg_utils.py, _set_default_max_num_seqs_and_batched_tokens_args
        return default
