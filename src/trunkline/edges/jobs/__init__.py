"""Typed jobs as tools: the agent ``trunkline.jobs`` that lives in the exchange (docs/jobs.md).

Read in this order: ``tools`` (what is offered), ``agent`` (how a call becomes a job and back), ``workers`` (processes
that do heavy work), ``remote`` (a model behind an endpoint), ``sandboxes`` (folders of sandbox jobs), ``edge`` (the
edge as the host knows it).
"""
