"""The HTTP edge: the exchange's own API for people and programs (``surface.md``'s routes).

Read in this order: ``messages`` (the wire, typed), ``translate`` (wire to our words and back), ``session`` (who waits
for what), ``gate`` (who may come in), ``routes`` (one method for each route), ``serve`` (the listener).
"""
