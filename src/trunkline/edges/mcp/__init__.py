"""The Model Context Protocol: programs that speak it call the tools of the exchange.

Read ``edge`` (the contract), ``serve`` (``/mcp``), ``steps`` (what a message means), then ``calls``.
"""
