"""Chiffon Agent Protocol v1.0, both roles: orchestrator of agents, and agent of other orchestrators.

Start reading at ``peers.py``.
"""
