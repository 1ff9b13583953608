"""The ends of what Trunkline is compared with, each written the way its own documentation shows, on uvloop."""
