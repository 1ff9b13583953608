"""OpenSentience Runtime Protocol v1: agents are separate processes; JSON in length-prefixed frames, local sockets."""
