"""Payments on Bitcoin's chain, proven without a node: a transaction, its place in a block, and the work on top of it.

Read in this order: ``transactions`` (bytes to a transaction, and its id), ``scripts`` (which script an address is, and
which one is a provider's for a job), ``headers`` (work, and headers that follow each other), ``payments`` (whether
all of it together proves that somebody was paid) and ``proof`` (what a receipt has of it). All of it is pure, and
everything that comes in may be hostile. An exchange pays nobody this way: that takes a node, which its user runs.
"""
