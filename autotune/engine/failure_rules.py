"""Every rule, in order: of two that fit one line, the first wins. Sources: docs/failures.md."""

from __future__ import annotations

from autotune.engine.failure_rule import Rule
from autotune.engine.flag_rules import FLAG_RULES
from autotune.engine.memory_rules import CAPACITY_RULES, OOM_RULES
from autotune.engine.surroundings_rules import SURROUNDINGS_RULES

RULES: tuple[Rule, ...] = (*CAPACITY_RULES, *SURROUNDINGS_RULES, *OOM_RULES, *FLAG_RULES)
