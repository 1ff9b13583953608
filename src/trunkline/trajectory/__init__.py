"""Trajectories: a correlation of the record in OpenAgents' form, REPLAY.jsonl v1, for others to check and answer from.

``events`` are the eight lines, ``plan`` and ``build`` make them from entries, ``bundle`` is the same as one value,
``check`` judges a file made by anybody, ``diff`` compares two, ``standin`` answers from one. Pure: nothing here opens a
file or a connection. See docs/trajectories.md.
"""
