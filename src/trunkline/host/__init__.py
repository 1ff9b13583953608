"""The world: the only code that touches sockets, processes, the clock and the disk."""
