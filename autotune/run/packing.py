"""Which size of engine the free devices should get next (pure). The searcher owns packing, not Ray.

Ray destroys finished actors when a trial of another size is pending, and each destroyed actor costs an import of vLLM.
So sizes take turns: a turn is at least `TURN` trials per slot, candidates of another size aren't asked for meanwhile,
and when the turn passes the devices drain: no candidate waits longer than the trials that run then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TURN = 5
"""Trials per slot before another size may take over: about one actor start in five trials."""


@dataclass(slots=True)
class Packing:
    """`nodes`: devices per node. A trial is placed by Ray on any node with enough free devices; which one is known
    (`place`) once it reports."""

    nodes: Mapping[str, int]
    concurrency: int | None = None
    _live: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    _size: int | None = None
    _left: int = 0

    @property
    def total(self) -> int:
        return sum(self.nodes.values())

    @property
    def busy(self) -> int:
        return sum(size for size, _ in self._live.values())

    def largest(self) -> int:
        """The largest engine that any node can hold."""
        return max(self.nodes.values(), default=0)

    def fits(self, size: int) -> bool:
        """Whether an engine of `size` devices would start now, without waiting for any running one."""
        if self.concurrency is not None and len(self._live) >= self.concurrency:
            return False
        if size == 1:
            return self.busy < self.total  # whatever the placement, a free device is a free device
        unplaced = sum(held for held, node in self._live.values() if node is None)
        free = [total - self._held(node) for node, total in self.nodes.items()]
        # An unplaced trial may sit on any node: leave room for the worst case, unless one node is all there is.
        return any(room - unplaced >= size for room in free)

    def wanted(self) -> int | None:
        """The size whose turn it is; None = any size may begin the next turn."""
        return self._size if self._left > 0 else None

    @property
    def size(self) -> int | None:
        """Of the engine that started last."""
        return self._size

    def start(self, trial: str, size: int) -> None:
        assert self.fits(size), f"{size} devices aren't free"
        if size != self._size or self._left <= 0:
            self._size, self._left = size, TURN * max(1, self.total // size)
        self._left -= 1
        self._live[trial] = (size, None)

    def place(self, trial: str, node: str) -> None:
        if trial in self._live:
            self._live[trial] = (self._live[trial][0], node)

    def end(self, trial: str) -> None:
        self._live.pop(trial, None)

    def _held(self, node: str) -> int:
        return sum(size for size, where in self._live.values() if where == node)
