"""The test kit that ships: what a test of Trunkline, or of an agent, needs of a faulty world."""
