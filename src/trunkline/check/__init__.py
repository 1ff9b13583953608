"""Conformance suites: whether somebody's implementation of a protocol does what the protocol asks for.

A suite is a black box tester. It shares no code with the edges of this project, so that a misreading in one of them is
found and not repeated.
"""
