"""OSSA: signed messages between agents, with requests, commands, events on topics, streams and delivery guarantees."""
