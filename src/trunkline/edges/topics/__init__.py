"""Events on topics, for every protocol: the agent ``trunkline`` that lives in the exchange, and routes over HTTP.

Read in this order: ``messages`` (what its tools are called with), ``agent`` (the tools), ``streams`` (who reads events
over HTTP), ``routes`` (how they are asked for), ``edge`` (the edge as the host knows it). docs/topics.md says what
topics are.
"""
