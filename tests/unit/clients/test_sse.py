"""Server-sent events, whatever the packets."""

from __future__ import annotations

import random

import pytest

from inference.clients.sse import SseDecoder

STREAM = (
    'data: {"a": 1}\n\n: ping\r\n\r\nevent: x\rdata: é\u2028ü\rdata:two\r\r\n'
    "data:\n\ndata: [DONE]\n\n"
)
EVENTS = ['{"a": 1}', "é\u2028ü\ntwo", "", "[DONE]"]


@pytest.mark.parametrize("longest", [1, 2, 5, 1000])
def test_events_do_not_depend_on_the_packets(longest):
    rng = random.Random(longest)
    for _ in range(20):
        raw, decoder, events = STREAM.encode(), SseDecoder(), []
        while raw:
            size = rng.randint(1, longest)
            events += decoder.feed(raw[:size])
            raw = raw[size:]
        assert events == EVENTS


def test_an_endless_event_is_refused(monkeypatch):
    monkeypatch.setattr("inference.clients.sse.MAX_EVENT_BYTES", 100)
    decoder = SseDecoder()
    decoder.feed(b"data: " + b"x" * 90)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        decoder.feed(b"x" * 20)
