"""Packing sequences into rows, and the order of an epoch. Pure functions of the seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def pack(
    lengths: Sequence[int], order: Sequence[int], capacity: int, window: int = 32
) -> list[list[int]]:
    """First-fit packing in the given order.

    Args:
        lengths: of all sequences, each <= capacity.
        order: indices of the sequences to pack.
        window: rows that stay open at a time; the fullest is closed when there are more.

    Returns:
        Rows, each a list of indices in order of arrival.
    """
    rows: list[list[int]] = []
    open_rows: list[tuple[int, list[int]]] = []  # (free tokens, members)
    for index in order:
        need = lengths[index]
        if need > capacity:
            raise ValueError(f"sequence {index} has {need} tokens, a row holds {capacity}")
        for j, (free, members) in enumerate(open_rows):
            if need <= free:
                members.append(index)
                open_rows[j] = (free - need, members)
                break
        else:
            members = [index]
            rows.append(members)
            open_rows.append((capacity - need, members))
            if len(open_rows) > window:
                open_rows.remove(min(open_rows, key=lambda row: row[0]))
    return rows


def epoch_batches(
    lengths: Sequence[int], *, capacity: int, rows: int, seed: int, epoch: int
) -> list[list[list[int]]]:
    """Global batches of an epoch: each a list of `rows` packed rows (the last one may have fewer).

    A sequence longer than `capacity` has a row of its own. Rows of a batch have similar lengths,
    so little of it is padding. The same for every process and every world size.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    short = [i for i in order if lengths[i] <= capacity]
    packed = pack(lengths, short, capacity) + [[i] for i in order if lengths[i] > capacity]
    packed = [packed[i] for i in torch.randperm(len(packed), generator=generator).tolist()]
    batches: list[list[list[int]]] = []
    window = 16 * rows
    for begin in range(0, len(packed), window):
        part = sorted(packed[begin : begin + window], key=lambda r: sum(lengths[i] for i in r))
        batches += [part[i : i + rows] for i in range(0, len(part), rows)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def share(batch: Sequence[list[int]], parts: int) -> list[list[list[int]]]:
    """Deal a batch's rows to `parts` micro batches; some may be empty at the end of an epoch."""
    return [list(batch[i::parts]) for i in range(parts)]
