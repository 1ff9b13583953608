"""The record: entries chained by hash, in SQLite, written by a process of its own. See ARCHITECTURE.md."""
