"""Output contracts: what a complete answer looks like, and when it is final."""

from __future__ import annotations

from .base import Acceptor, Contract, Match
from .errors import ContractError
from .registry import contract, contract_class, names, register

__all__ = [
    "Acceptor",
    "Contract",
    "ContractError",
    "Match",
    "contract",
    "contract_class",
    "names",
    "register",
]
