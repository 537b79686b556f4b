"""What a commit is worth: tokens, time, predicted and measured speed-up.

Symbols as in the design: L tokens without ACE, tau tokens at the commit, delta tokens generated
after it before the engine stopped (overshoot), P the prefill's cost, c the cost of one decoded
token, C_A the committer's cost. All costs in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Account:
    """One request.

    `full_tokens` (L), `commit_tokens` (tau; None: no commit before the end), `overshoot_tokens`
    (delta), `valid`: whether there is an answer. Times, where known: `commit_s` (from the request
    to the commit, which is the time to a valid answer), `end_s` (to the end of what was
    generated), `full_s` (to the end without ACE).
    """

    full_tokens: int
    commit_tokens: int | None = None
    overshoot_tokens: int = 0
    valid: bool = False
    commit_s: float | None = None
    end_s: float | None = None
    full_s: float | None = None

    def __post_init__(self) -> None:
        if self.full_tokens < 0 or self.overshoot_tokens < 0:
            raise ValueError("full_tokens, overshoot_tokens: must not be negative")
        if self.commit_tokens is not None and not 0 <= self.commit_tokens <= self.full_tokens:
            raise ValueError(
                f"commit_tokens: {self.commit_tokens} is not in [0, {self.full_tokens}]"
            )

    @property
    def generated_tokens(self) -> int:
        """tau + delta, at most L."""
        if self.commit_tokens is None:
            return self.full_tokens
        return min(self.full_tokens, self.commit_tokens + self.overshoot_tokens)

    @property
    def saved_tokens(self) -> int:
        """Tokens that need not be generated."""
        return self.full_tokens - self.generated_tokens

    @property
    def ttva_s(self) -> float | None:
        """Time to a valid answer: to the commit, or to the end where the answer came only then."""
        if not self.valid:
            return None
        return self.end_s if self.commit_s is None else self.commit_s

    def predicted_speedup(
        self, *, prefill_s: float, token_s: float, committer_s: float = 0.0
    ) -> float:
        """(P + c L) / (P + c (tau + delta) + C_A)."""
        with_ace = prefill_s + token_s * self.generated_tokens + committer_s
        return (prefill_s + token_s * self.full_tokens) / with_ace

    @property
    def measured_speedup(self) -> float | None:
        """Time without ACE over time with it, where both are known."""
        if self.full_s is None or not self.end_s:
            return None
        return self.full_s / self.end_s


def aggregate(accounts: Sequence[Account], *, wall_s: float | None = None) -> dict[str, Any]:
    """Totals over requests; figures that need times are None where these are missing.

    `wall_s`: the time in which all the requests were served, for valid answers per second.
    """
    ttva = [account.ttva_s for account in accounts if account.ttva_s is not None]
    speedups = [a.measured_speedup for a in accounts if a.measured_speedup is not None]
    valid = sum(account.valid for account in accounts)
    full = sum(account.full_tokens for account in accounts)
    saved = sum(account.saved_tokens for account in accounts)
    return {
        "n": len(accounts),
        "valid": valid,
        "committed_early": sum(account.commit_tokens is not None for account in accounts),
        "full_tokens": full,
        "saved_tokens": saved,
        "saved_share": saved / full if full else 0.0,
        "ttva_s": sum(ttva) / len(ttva) if ttva else None,
        "measured_speedup": sum(speedups) / len(speedups) if speedups else None,
        "valid_answers_per_s": valid / wall_s if wall_s else None,
    }
