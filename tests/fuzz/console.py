"""Whatever a page may send on the console's live line: whole messages with anything in each field, and any bytes."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from trunkline.edges.console import messages

CHANNELS = st.sampled_from(["private-feed", "private-registry", "private-figures", "feed", "presence-feed", "x", ""])
EVENTS = st.sampled_from(
    ["pusher:subscribe", "pusher:unsubscribe", "pusher:ping", "pusher:pong", messages.FOLLOW, "client-x", "feed.batch"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12) | CHANNELS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FOLLOWS = st.fixed_dictionaries(
    {},
    optional={
        "after": st.integers(-5, 60) | VALUES,
        "kinds": st.lists(st.sampled_from(["call.*", "notice", "*", ""]), max_size=3) | VALUES,
        "call_id": st.text(max_size=40) | VALUES,
        "output": st.booleans() | VALUES,
    },
)
SUBSCRIPTIONS = st.fixed_dictionaries(
    {}, optional={"channel": CHANNELS | VALUES, "auth": VALUES, "channel_data": VALUES}
)
DATA = FOLLOWS | SUBSCRIPTIONS | VALUES
FRAMES = st.fixed_dictionaries(
    {}, optional={"event": EVENTS | VALUES, "channel": CHANNELS | VALUES, "data": DATA | DATA.map(json.dumps)}
).map(lambda frame: json.dumps(frame).encode())
SAID = st.lists(FRAMES | st.binary(max_size=60), max_size=12)
