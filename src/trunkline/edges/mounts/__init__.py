"""Servers of the Model Context Protocol, mounted: each is an agent, and its tools are tools of this exchange."""
