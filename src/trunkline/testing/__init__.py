"""The test kit, which ships: time, network and disk that fail on demand, scripted agents, and ``simulate(seed)``.

For tests of Trunkline, of an agent, or of an edge of your own. docs/testing.md says what each module is for; start
with ``simulation``.
"""
