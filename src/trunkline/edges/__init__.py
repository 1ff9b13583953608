"""Protocols, one folder each. An edge turns bytes into events and effects into bytes; see ARCHITECTURE.md."""
