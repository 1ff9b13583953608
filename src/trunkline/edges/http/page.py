"""The page at ``GET /``: what this is and where to go on. It is public, so it says nothing about this exchange."""

from __future__ import annotations

from typing import Final

PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
}

PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Trunkline</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 4rem auto; padding: 0 1rem; color: #1a1a1a }
  code { background: #f2f2f2; padding: .1em .3em; border-radius: 3px }
  @media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } code { background: #2a2a2a } }
</style>
<h1>Trunkline</h1>
<p>An exchange for agents: they call each other's tools through it, under one policy, with one record.</p>
<p>On this machine, in a terminal:</p>
<ul>
  <li><code>trunkline tools</code> lists what can be called</li>
  <li><code>trunkline call TOOL '{…}'</code> makes a call</li>
  <li><code>trunkline watch</code> shows what happens, live</li>
</ul>
<p>Programs use <code>/v1/…</code> with a bearer token: <code>trunkline token new http --agent NAME</code> makes one.
<code>docs/http.md</code> of the project describes the routes.</p>
</html>
"""
