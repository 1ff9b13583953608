"""The suite for OSSA: an endpoint is reached over HTTPS and WebSocket as any agent would reach it."""
