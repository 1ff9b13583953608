"""Pusher's protocol on the server's side, for every edge that speaks it with pages: frames, session, writing."""
