"""Whether throughput had settled: ramp-up left out, the first half against the second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.load.statistics import ramp_s, token_times
from autotune.spec.measurement import RequestRecord
from autotune.spec.workload import ClosedLoop, Poisson, Rung

_FEWEST_STAYS = 8
_FEWEST_REQUESTS = 40
_CHANGE = 0.15
_STANDARD_ERRORS = 5.0


def unsteady(rung: Rung, records: Sequence[RequestRecord], *, until_s: float) -> str | None:
    """None when it had settled, and when that can't be told: fewer than 8 stretches as long as a request stays.

    Blocks of one stay each hold whole waves of a closed loop. A change counts when it is over 15 % of the mean and over
    5 standard errors, both, so that luck makes hardly a rung in a thousand unsteady. Arrivals that aren't meant to be
    even are not judged.
    """
    finished = [r for r in records if r.error is None and r.first_token_s is not None and r.done_s is not None]
    if not isinstance(rung.arrivals, ClosedLoop | Poisson) or len(finished) < _FEWEST_REQUESTS:
        return None
    begin_s = ramp_s(rung, finished)
    stay_s = float(np.median([(r.done_s or 0.0) - r.sent_s for r in finished]))
    stretches = int((until_s - begin_s) / stay_s) // 2 * 2 if stay_s > 0 else 0
    if stretches < _FEWEST_STAYS:
        return None
    stretches = min(stretches, 32)
    times_s, _, weights = token_times(finished)
    rates, _ = np.histogram(times_s, bins=stretches, range=(begin_s, until_s), weights=weights)
    first, second = rates[: stretches // 2], rates[stretches // 2 :]
    change = float(second.mean() - first.mean())
    error = float(np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / (stretches // 2)))
    if abs(change) <= _CHANGE * float(rates.mean()) or abs(change) <= _STANDARD_ERRORS * error:
        return None
    return (
        f"throughput hadn't settled: {100 * change / float(first.mean()):+.0f} % from the first half to the second, "
        f"after a ramp of {begin_s:.1f} s"
    )
