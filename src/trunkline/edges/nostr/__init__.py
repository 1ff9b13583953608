"""OpenAgents over Nostr: jobs that strangers ask for by signed events on relays, and our answers to them."""
