"""Listeners and connections: transports joined to the dispatcher."""
