"""What an agent's author imports: ``from trunkline import Agent``. Start reading at ``agent.py``."""
