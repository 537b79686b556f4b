"""Which boundary is sufficient, and which boundaries to probe to know it. Pure functions.

A search is a function of what is known so far, so it can be replayed, resumed and tested without
an engine. `known[k]` says whether the trial answer at boundary k agrees with the full output's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_build.config import Probe, Strategy

Known = Mapping[int, bool]


def thin(boundaries: Sequence[int], every: int = 1, min_gap_tokens: int = 0) -> list[int]:
    """Indices of the boundaries that may be probed; the first and the last always may.

    Args:
        boundaries: `[K + 1]` thinking tokens before each boundary, increasing.
    """
    last = len(boundaries) - 1
    grid = [0]
    for k in range(1, last):
        if k % every == 0 and boundaries[k] - boundaries[grid[-1]] >= min_gap_tokens:
            grid.append(k)
    return [*grid, last] if last > 0 else grid


def boundaries_to_probe(
    strategy: Strategy, boundaries: Sequence[int], settings: Probe
) -> list[int]:
    """Indices that a strategy may probe: `all` is every boundary, the others take a thin grid."""
    if strategy == "all":
        return list(range(len(boundaries)))
    return thin(boundaries, settings.every, settings.min_gap_tokens)


def plan(strategy: Strategy, grid: Sequence[int], known: Known, settings: Probe) -> list[int]:
    """Boundaries to probe next, empty when the search has ended.

    Args:
        grid: boundaries that may be probed, increasing.
        known: results so far.
    """
    if strategy == "all":
        return [k for k in grid if k not in known]
    if strategy == "first":
        return _from_front(grid, known, settings.window)
    if strategy == "bisect":
        return _bisect(grid, known, settings)
    return _from_end(grid, known, settings.window)


def spread(grid: Sequence[int], known: Known, count: int) -> list[int]:
    """At most `count` boundaries, evenly over those of the grid that were not probed."""
    left = [k for k in grid if k not in known]
    if count >= len(left):
        return left
    return sorted({left[i * len(left) // count] for i in range(count)})


def sufficient(known: Known, rule: str = "stable") -> int | None:
    """k*, the minimal sufficient boundary among the probed ones.

    Args:
        rule: `stable`, the smallest k such that every probed j >= k agrees; or `first`, the
            smallest k that agrees.
    """
    if rule == "first":
        return min((k for k, agrees in known.items() if agrees), default=None)
    found = None
    for k in sorted(known, reverse=True):
        if not known[k]:
            break
        found = k
    return found


def is_monotone(known: Known) -> bool:
    """Whether no probed boundary agrees before one that does not: what bisection assumes."""
    agreed = False
    for k in sorted(known):
        if agreed and not known[k]:
            return False
        agreed = agreed or known[k]
    return True


def _from_front(grid: Sequence[int], known: Known, window: int) -> list[int]:
    if any(known.values()):
        return []
    return [k for k in grid if k not in known][:window]


def _from_end(grid: Sequence[int], known: Known, window: int) -> list[int]:
    asked: list[int] = []
    for k in reversed(grid):
        if k not in known:
            asked.append(k)
            if len(asked) == window:
                break
        elif not known[k]:
            break
    return asked


def _bisect(grid: Sequence[int], known: Known, settings: Probe) -> list[int]:
    """Halve the range between the last boundary, which agrees, and the latest that does not;
    then check the boundaries after the result. A result that fails is searched from the end."""
    if not known:
        return [grid[-1]]
    if not known[grid[-1]]:
        return []
    if not is_monotone(known):
        return _from_end(grid, known, settings.window)
    low, high = -1, len(grid) - 1  # places in the grid: disagrees (or before all), agrees
    for place, k in enumerate(grid):
        if k in known:
            if known[k]:
                high = min(high, place)
            else:
                low = max(low, place)
    if high - low > 1:
        return [grid[(low + high) // 2]]
    later = range(high + 1, len(grid) - 1)
    if settings.verify == "spread":
        steps = {high + (1 << i) for i in range(len(grid).bit_length())}
        later = [place for place in later if place in steps]  # type: ignore[assignment]
    return [grid[place] for place in later if grid[place] not in known]
