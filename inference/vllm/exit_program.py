"""The Triton program of `exit_kernel`: one request's verification step.

Columns of the state's tensors are those of `Count`, `Flag`, `Limit` and `Mode`. A program reads
all of its request's state before it writes any, and has one warp, so that no lane reads what
another has already replaced. Per-column values are kept in registers as vectors over the columns.
"""

# mypy: disable-error-code="no-untyped-def"
# (a Triton program has no Python types)
from __future__ import annotations

import triton
import triton.language as tl

from inference.vllm.exit_state import Count, Flag, Limit, Mode

_TOKENS = tl.constexpr(int(Count.TOKENS))
_BOUNDARY = tl.constexpr(int(Count.BOUNDARY))
_STREAK = tl.constexpr(int(Count.STREAK))
_OUTPUTS = tl.constexpr(int(Count.OUTPUTS))
_FORCED = tl.constexpr(int(Count.FORCED))
_COUNTS = tl.constexpr(len(Count))
_THINKING = tl.constexpr(int(Flag.THINKING))
_CLOSED = tl.constexpr(int(Flag.CLOSED))
_SMOOTHED = tl.constexpr(int(Flag.SMOOTHED))
_FLAGS = tl.constexpr(len(Flag))
_PATIENCE = tl.constexpr(int(Limit.PATIENCE))
_MIN_TOKENS = tl.constexpr(int(Limit.MIN_TOKENS))
_MIN_BOUNDARIES = tl.constexpr(int(Limit.MIN_BOUNDARIES))
_SOFT = tl.constexpr(int(Limit.SOFT))
_HARD = tl.constexpr(int(Limit.HARD))
_FORCED_LENGTH = tl.constexpr(int(Limit.FORCED_LENGTH))
_LIMITS = tl.constexpr(len(Limit))
_ENABLED = tl.constexpr(int(Mode.ENABLED))
_UNSMOOTHED = tl.constexpr(int(Mode.UNSMOOTHED))
_STEP_UNIT = tl.constexpr(int(Mode.STEP_UNIT))
_REFERENCE = tl.constexpr(int(Mode.REFERENCE))
_REENTER = tl.constexpr(int(Mode.REENTER))
_DISCOURSE = tl.constexpr(int(Mode.DISCOURSE))
_OPEN_PROMPT = tl.constexpr(int(Mode.OPEN_PROMPT))
_MODES = tl.constexpr(len(Mode))
# columns of `floats`: smoothed (3), tokens of the paragraph, logits (3), hidden (D), total (D)
_PARAGRAPH = tl.constexpr(3)
_LOGITS = tl.constexpr(4)
_HIDDEN = tl.constexpr(7)


@triton.jit
def _window(history, inputs, index, H: tl.constexpr, W: tl.constexpr):
    """Ids of `[history, inputs]` at `index` (a scalar or a vector)."""
    old = tl.load(history + index, mask=index < H, other=0)
    new = tl.load(inputs + (index - H), mask=(index >= H) & (index < H + W), other=0)
    return tl.where(index < H, old, new)


@triton.jit
def _completes(
    history, inputs, last, pattern, LENGTH: tl.constexpr, H: tl.constexpr, W: tl.constexpr
):
    """Whether the ids of the window up to and including `last` end with `pattern`, 1 or 0."""
    hit = tl.full((), 1, tl.int32)
    for k in tl.static_range(LENGTH):
        same = _window(history, inputs, last - (LENGTH - 1) + k, H, W) == tl.load(pattern + k)
        hit = hit & same.to(tl.int32)
    return hit


@triton.jit
def _at(vector, columns, i):
    """Entry i of a vector over the columns."""
    return tl.sum(tl.where(columns == i, vector, 0), 0)


@triton.jit
def _gate(
    weights, z, second, row, gate, D: tl.constexpr, PADDED: tl.constexpr, SECOND: tl.constexpr
):
    """Rows `gate * D ...` of `weights [3D, D or 2D]` times `z` (and `second`): `[PADDED]`."""
    column = tl.arange(0, PADDED)
    inside = (row[:, None] < D) & (column[None, :] < D)
    WIDTH: tl.constexpr = 2 * D if SECOND else D
    at = weights + (gate * D + row[:, None]) * WIDTH + column[None, :]
    total = tl.sum(tl.load(at, mask=inside, other=0.0) * z[None, :], 1)
    if SECOND:
        total += tl.sum(tl.load(at + D, mask=inside, other=0.0) * second[None, :], 1)
    return total


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=["forced_width"])
def exit_program(
    slots,
    inputs,
    sampled,
    num_sampled,
    values,  # logits [B, W, 3], or z [B, W, D] of a memory head
    counts,
    flags,
    floats,
    history,
    limits,
    modes,
    levels,
    ignored,
    forced,
    blank,
    blank_line,
    starts_newline,
    ends_newline,
    connective,
    start_ids,
    end_ids,
    gru_in,
    gru_hidden,
    gru_in_bias,
    gru_hidden_bias,
    readout_in,
    readout_in_bias,
    readout_out,
    readout_out_bias,
    out_sampled,
    out_count,
    out_injected,
    out_begun,
    out_ended,
    out_signals,
    out_takes,
    out_smoothed,
    out_position,
    out_tokens,
    out_boundary,
    forced_width,
    W: tl.constexpr,
    W_PADDED: tl.constexpr,
    H: tl.constexpr,
    H_PADDED: tl.constexpr,
    MEMORY: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    R: tl.constexpr,
    R_PADDED: tl.constexpr,
    FLOATS: tl.constexpr,
    START_LENGTH: tl.constexpr,
    END_LENGTH: tl.constexpr,
):
    """One request of the batch; see `exit_step.step` for what each part means."""
    b = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + b)
    counts += slot * _COUNTS
    flags += slot * _FLAGS
    floats += slot * FLOATS
    history += slot * H
    limits += slot * _LIMITS
    modes += slot * _MODES
    levels += slot * 4
    ignored += slot * 3
    forced += slot * forced_width
    inputs += b * W
    sampled += b * W
    columns = tl.arange(0, W_PADDED)
    is_column = columns < W

    zero = tl.full((), 0, tl.int32)  # the interpreter's loop variables are no tensors
    n = tl.load(num_sampled + b).to(tl.int32)
    tokens = tl.load(counts + _TOKENS)
    boundary = tl.load(counts + _BOUNDARY)
    streak = tl.load(counts + _STREAK)
    outputs = tl.load(counts + _OUTPUTS)
    written = tl.load(counts + _FORCED)
    was_closed = tl.load(flags + _CLOSED) != 0
    has = (tl.load(flags + _SMOOTHED) != 0).to(tl.int32)
    enabled = tl.load(modes + _ENABLED) != 0
    writing = (written > 0) & (written < tl.load(limits + _FORCED_LENGTH)) & (n > 0)
    n = tl.where(writing, 1, n)

    # What each accepted input is; a memory head is advanced on the way.
    generated = outputs > 0
    may_open = enabled & ((tl.load(modes + _REENTER) != 0) | (was_closed == 0))
    open_prompt = tl.load(modes + _OPEN_PROMPT) != 0
    discourse = tl.load(modes + _DISCOURSE) != 0
    thinking = ((tl.load(flags + _THINKING) != 0) & enabled).to(tl.int32)
    takes_at = tl.zeros([W_PADDED], tl.int32)
    opens_at = tl.zeros([W_PADDED], tl.int32)
    ends_at = tl.zeros([W_PADDED], tl.int32)
    splits_at = tl.zeros([W_PADDED], tl.int32)
    decides_at = tl.zeros([W_PADDED], tl.int32)
    if MEMORY:
        row = tl.arange(0, D_PADDED)
        wide = tl.arange(0, R_PADDED)
        is_row = row < D
        is_wide = wide < R
        hidden = tl.load(floats + _HIDDEN + row, mask=is_row, other=0.0)
        total = tl.load(floats + _HIDDEN + D + row, mask=is_row, other=0.0)
        paragraph = tl.load(floats + _PARAGRAPH)
        logit0 = tl.load(floats + _LOGITS)
        logit1 = tl.load(floats + _LOGITS + 1)
        logit2 = tl.load(floats + _LOGITS + 2)
        blank0 = tl.load(blank + _LOGITS)
        blank1 = tl.load(blank + _LOGITS + 1)
        blank2 = tl.load(blank + _LOGITS + 2)
        raw0 = tl.zeros([W_PADDED], tl.float32)
        raw1 = tl.zeros([W_PADDED], tl.float32)
        raw2 = tl.zeros([W_PADDED], tl.float32)
    for c in range(W):
        i = zero + c
        live = n > i
        ours = live & (generated | (i > 0))
        thinks = thinking != 0
        token = tl.load(inputs + i)
        before = _window(history, inputs, H + i - 1, H, W)
        ends_here = _completes(history, inputs, H + i, end_ids, END_LENGTH, H, W) != 0
        ends = ours & thinks & ends_here
        opens = ours & (thinking == 0) & may_open
        if START_LENGTH > 0:
            starts_here = _completes(history, inputs, H + i, start_ids, START_LENGTH, H, W)
            opens = opens & (starts_here != 0)
        else:
            opens = opens & (n < 0)
        decides = ours & thinks & (ends == 0)
        takes = decides | (live & (i == 0) & (generated == 0) & thinks & open_prompt)
        split = tl.load(blank_line + token) != 0
        pair = (tl.load(starts_newline + token) != 0) & (tl.load(ends_newline + before) != 0)
        following = tl.load(sampled + i, mask=live, other=0)
        follows = discourse & (tl.load(connective + following) != 0)
        splits = takes & (split | pair | follows)
        thinking = ((thinks & (ends == 0)) | opens).to(tl.int32)
        here = columns == i
        takes_at = tl.where(here, takes.to(tl.int32), takes_at)
        opens_at = tl.where(here, opens.to(tl.int32), opens_at)
        ends_at = tl.where(here, ends.to(tl.int32), ends_at)
        splits_at = tl.where(here, splits.to(tl.int32), splits_at)
        decides_at = tl.where(here, decides.to(tl.int32), decides_at)
        if MEMORY:
            z = tl.load(values + (b * W + i) * D + row, mask=is_row, other=0.0)
            total = total + tl.where(takes, z, 0.0)
            paragraph = paragraph + takes.to(tl.float32)
            if splits:
                mean = total / paragraph
                in_r = _gate(gru_in, z, mean, row, 0, D, D_PADDED, True)
                in_u = _gate(gru_in, z, mean, row, 1, D, D_PADDED, True)
                in_n = _gate(gru_in, z, mean, row, 2, D, D_PADDED, True)
                of_r = _gate(gru_hidden, hidden, hidden, row, 0, D, D_PADDED, False)
                of_u = _gate(gru_hidden, hidden, hidden, row, 1, D, D_PADDED, False)
                of_n = _gate(gru_hidden, hidden, hidden, row, 2, D, D_PADDED, False)
                in_r += tl.load(gru_in_bias + row, mask=is_row, other=0.0)
                in_u += tl.load(gru_in_bias + D + row, mask=is_row, other=0.0)
                in_n += tl.load(gru_in_bias + 2 * D + row, mask=is_row, other=0.0)
                of_r += tl.load(gru_hidden_bias + row, mask=is_row, other=0.0)
                of_u += tl.load(gru_hidden_bias + D + row, mask=is_row, other=0.0)
                of_n += tl.load(gru_hidden_bias + 2 * D + row, mask=is_row, other=0.0)
                update = tl.sigmoid(in_u + of_u)
                new = _tanh(in_n + tl.sigmoid(in_r + of_r) * of_n)
                hidden = new + update * (hidden - new)
                tile = (wide[:, None] < R) & (row[None, :] < D)
                matrix = tl.load(
                    readout_in + wide[:, None] * D + row[None, :], mask=tile, other=0.0
                )
                inner = tl.sum(matrix * hidden[None, :], 1)
                inner += tl.load(readout_in_bias + wide, mask=is_wide, other=0.0)
                inner = inner * tl.sigmoid(inner)
                out0 = tl.load(readout_out + wide, mask=is_wide, other=0.0)
                out1 = tl.load(readout_out + R + wide, mask=is_wide, other=0.0)
                out2 = tl.load(readout_out + 2 * R + wide, mask=is_wide, other=0.0)
                logit0 = tl.sum(out0 * inner, 0) + tl.load(readout_out_bias)
                logit1 = tl.sum(out1 * inner, 0) + tl.load(readout_out_bias + 1)
                logit2 = tl.sum(out2 * inner, 0) + tl.load(readout_out_bias + 2)
                total = tl.zeros([D_PADDED], tl.float32)
                paragraph = paragraph * 0
            raw0 = tl.where(here, logit0, raw0)
            raw1 = tl.where(here, logit1, raw1)
            raw2 = tl.where(here, logit2, raw2)
            hidden = tl.where(opens, 0.0, hidden)
            total = tl.where(opens, 0.0, total)
            paragraph = tl.where(opens, 0.0, paragraph)
            logit0 = tl.where(opens, blank0, logit0)
            logit1 = tl.where(opens, blank1, logit1)
            logit2 = tl.where(opens, blank2, logit2)
    if MEMORY == 0:
        cell = values + (b * W + columns) * 3
        raw0 = tl.load(cell, mask=is_column, other=0.0)
        raw1 = tl.load(cell + 1, mask=is_column, other=0.0)
        raw2 = tl.load(cell + 2, mask=is_column, other=0.0)
    signal0 = tl.sigmoid(raw0)
    signal1 = tl.sigmoid(raw1)
    signal2 = tl.exp(raw2)

    # Smoothing with `unit: step`: the mean of the step's thinking tokens moves it once.
    by_step = tl.load(modes + _STEP_UNIT) != 0
    reference = tl.load(modes + _REFERENCE) != 0
    unsmoothed = tl.load(modes + _UNSMOOTHED) != 0
    alpha = tl.load(levels + 3)
    old0 = tl.load(floats)
    old1 = tl.load(floats + 1)
    old2 = tl.load(floats + 2)
    last_open = tl.max(tl.where(opens_at != 0, columns, -1), 0)
    old_has = (has != 0) & (last_open < 0)
    counted = (takes_at != 0) & (columns > last_open)
    amount = tl.sum(counted.to(tl.int32), 0)
    divisor = tl.maximum(amount, 1).to(tl.float32)
    mean0 = tl.sum(tl.where(counted, signal0, 0.0), 0) / divisor
    mean1 = tl.sum(tl.where(counted, signal1, 0.0), 0) / divisor
    mean2 = tl.sum(tl.where(counted, signal2, 0.0), 0) / divisor
    step_moves = by_step & (amount > 0)
    mixes = old_has & (unsmoothed == 0)
    smooth0 = tl.where(step_moves, tl.where(mixes, alpha * mean0 + (1 - alpha) * old0, mean0), old0)
    smooth1 = tl.where(step_moves, tl.where(mixes, alpha * mean1 + (1 - alpha) * old1, mean1), old1)
    smooth2 = tl.where(step_moves, tl.where(mixes, alpha * mean2 + (1 - alpha) * old2, mean2), old2)
    has = tl.where(by_step, (old_has | step_moves).to(tl.int32), has)
    tested0 = tl.where(reference, old0, smooth0)
    tested1 = tl.where(reference, old1, smooth1)
    tested2 = tl.where(reference, old2, smooth2)
    testable = (reference == 0) | old_has

    # The rule, column by column.
    level0 = tl.load(levels)
    level1 = tl.load(levels + 1)
    level2 = tl.load(levels + 2)
    skip0 = tl.load(ignored) != 0
    skip1 = tl.load(ignored + 1) != 0
    skip2 = tl.load(ignored + 2) != 0
    patience = tl.load(limits + _PATIENCE)
    min_tokens = tl.load(limits + _MIN_TOKENS)
    min_boundaries = tl.load(limits + _MIN_BOUNDARIES)
    soft = tl.load(limits + _SOFT)
    hard = tl.load(limits + _HARD)
    end_first = tl.load(end_ids)
    first = (n >= 0).to(tl.int32)
    column = (n < 0).to(tl.int32) - 1
    for c in range(W):
        i = zero + c
        going = column < 0
        takes = (_at(takes_at, columns, i) != 0) & going
        splits = (_at(splits_at, columns, i) != 0) & going
        opens = (_at(opens_at, columns, i) != 0) & going
        tokens += takes.to(tl.int32)
        now0 = _at(signal0, columns, i)
        now1 = _at(signal1, columns, i)
        now2 = _at(signal2, columns, i)
        fresh = (has == 0) | unsmoothed
        moves = takes & (by_step == 0)
        mixed0 = tl.where(fresh, now0, alpha * now0 + (1 - alpha) * smooth0)
        mixed1 = tl.where(fresh, now1, alpha * now1 + (1 - alpha) * smooth1)
        mixed2 = tl.where(fresh, now2, alpha * now2 + (1 - alpha) * smooth2)
        smooth0 = tl.where(moves, mixed0, smooth0)
        smooth1 = tl.where(moves, mixed1, smooth1)
        smooth2 = tl.where(moves, mixed2, smooth2)
        has = has | moves.to(tl.int32)
        boundary += splits.to(tl.int32)
        value0 = tl.where(by_step, tested0, smooth0)
        value1 = tl.where(by_step, tested1, smooth1)
        value2 = tl.where(by_step, tested2, smooth2)
        tests = splits & ((first != 0) | (reference == 0))
        first = tl.where(splits, 0, first)
        passes = ((value0 > level0) | skip0) & ((value1 > level1) | skip1)
        passes = passes & ((-value2 > level2) | skip2) & (testable | (by_step == 0))
        streak = tl.where(tests, tl.where(passes, streak + 1, 0), streak)
        enough = tests & (streak >= patience) & (tokens >= min_tokens)
        enough = enough & (boundary >= min_boundaries)
        enough = enough | (splits & (tokens >= soft)) | (takes & (tokens >= hard))
        enough = enough & (_at(decides_at, columns, i) != 0)
        if END_LENGTH == 1:  # a think end that comes by itself is natural
            answer = tl.load(sampled + i, mask=i < n, other=-1)
            enough = enough & (answer != end_first)
        column = tl.where(enough & going, i, column)
        boundary = tl.where(opens, 0, boundary)
        streak = tl.where(opens, 0, streak)
        has = tl.where(opens & (by_step == 0), 0, has)

    # Write the forced id, drop what follows.
    cut = tl.where(writing, 0, column)
    stops = cut >= 0
    injects = (column >= 0) & (writing == 0)
    begun = zero
    for length in tl.static_range(1, END_LENGTH):
        at = H + tl.maximum(column, 0)
        matches = _completes(history, inputs, at, end_ids, length, H, W) != 0
        begun = tl.where(matches, length, begun)
    begin = tl.where(writing, written, begun)
    last_begin = tl.minimum(begin, forced_width - 1)
    forced_id = tl.load(forced + last_begin)
    n = tl.where(stops, cut + 1, n)
    kept = tl.load(sampled + columns, mask=is_column & (columns < n), other=-1)
    kept = tl.where(stops & (columns == cut), forced_id, kept)
    kept = tl.where(columns < n, kept, -1)
    limit = tl.where(injects, column, W)
    ended = tl.max(tl.where((ends_at != 0) & (columns <= limit), columns, -1), 0)
    lanes = tl.arange(0, H_PADDED)
    tail = _window(history, inputs, n + lanes, H, W)

    tl.store(out_sampled + b * W + columns, kept, mask=is_column)
    tl.store(out_count + b, n)
    tl.store(out_injected + b, tl.where(injects, column, -1))
    tl.store(out_begun + b, begun)
    tl.store(out_ended + b, ended)
    cell = out_signals + (b * W + columns) * 3
    tl.store(cell, signal0, mask=is_column)
    tl.store(cell + 1, signal1, mask=is_column)
    tl.store(cell + 2, signal2, mask=is_column)
    taken = ((takes_at != 0) & (columns <= limit)).to(tl.uint8)
    tl.store(out_takes + b * W + columns, taken, mask=is_column)
    tl.store(out_smoothed + b * 3, smooth0)
    tl.store(out_smoothed + b * 3 + 1, smooth1)
    tl.store(out_smoothed + b * 3 + 2, smooth2)
    tl.store(out_position + b, outputs)
    tl.store(out_tokens + b, tokens)
    tl.store(out_boundary + b, boundary)

    tl.store(counts + _TOKENS, tokens)
    tl.store(counts + _BOUNDARY, boundary)
    tl.store(counts + _STREAK, streak)
    tl.store(counts + _OUTPUTS, outputs + n)
    tl.store(counts + _FORCED, tl.where(stops, begin + 1, written))
    tl.store(flags + _THINKING, ((thinking != 0) & (injects == 0)).to(tl.uint8))
    tl.store(flags + _CLOSED, (was_closed | injects).to(tl.uint8))
    tl.store(flags + _SMOOTHED, has.to(tl.uint8))
    tl.store(floats, smooth0)
    tl.store(floats + 1, smooth1)
    tl.store(floats + 2, smooth2)
    if MEMORY:
        tl.store(floats + _PARAGRAPH, paragraph)
        tl.store(floats + _LOGITS, logit0)
        tl.store(floats + _LOGITS + 1, logit1)
        tl.store(floats + _LOGITS + 2, logit2)
        tl.store(floats + _HIDDEN + row, hidden, mask=is_row)
        tl.store(floats + _HIDDEN + D + row, total, mask=is_row)
    tl.store(history + lanes, tail, mask=lanes < H)
