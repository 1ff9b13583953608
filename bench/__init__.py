"""Side by side with the bare relay and with peers: ``make bench``. How and why: ``docs/performance.md``. Not shipped."""
