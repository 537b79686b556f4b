"""Replay: evaluate exit policies on recorded traces, without generating again.

Full thinking, the raw signals at every token and the trial answer at every boundary are recorded
once (`ReplayTable`). Where a policy would have exited, whether that answer is right and how many
tokens it took are then look-ups (`Replay`): exact for greedy decoding, thousands a second.
"""

from specexit.replay.evaluate import NATURAL, Exits, Outcomes, Replay
from specexit.replay.summary import Summary
from specexit.replay.table import FORMAT_VERSION, ReplayTable

__all__ = ["FORMAT_VERSION", "NATURAL", "Exits", "Outcomes", "Replay", "ReplayTable", "Summary"]
