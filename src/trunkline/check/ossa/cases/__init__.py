"""The cases of the OSSA suite, one module for each category; importing a module lists its cases."""
