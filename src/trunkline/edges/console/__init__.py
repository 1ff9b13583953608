"""The operator's console: a page in a browser that the exchange serves itself."""
