"""Typed work as OpenAgents describes it: what a job's inputs and outputs are, the four job types, and verification.

Read in this order: ``schemas`` (what a job is, hashes), ``tool_schemas`` (any tool as a job type), ``consistency``
(whether outputs fit inputs), ``verification`` (whether a result is right, and who is to be paid), then what does the
work: ``embedding``, ``rerank``, ``chunks``, ``sandbox``, and ``endpoint`` for a model elsewhere. Nothing here knows a
protocol or the exchange; ``edges/jobs`` offers all of it as tools.
"""
