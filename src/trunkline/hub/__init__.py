"""The middle: pure decisions. ``Hub.handle(event, now)`` gives effects; the same events always give the same effects."""
