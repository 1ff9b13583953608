"""The middle: pure decisions. ``Hub.handle(event, now)`` gives effects; equal events always give equal effects."""
