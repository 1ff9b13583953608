"""Pylon of OpenAgents: a bridge to this machine for pages in a browser, in Pusher's protocol."""
