"""What the Makefile runs and nobody installs."""
