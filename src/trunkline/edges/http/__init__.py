"""The HTTP edge: the exchange's own API for people and programs (docs/http.md).

Read in this order: ``messages`` (the wire, typed), ``translate`` (wire to our words and back), ``gate`` (who may come
in), ``routes`` (one method for each route), ``calls`` (the route that makes calls), ``stream`` (server-sent events),
``edge`` (the edge as the host knows it).
"""
