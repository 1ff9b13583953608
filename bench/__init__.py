"""Side by side with the bare relay and with peers: ``make bench``. How: ``docs/performance.md``. Not shipped."""
