"""Listeners and connections: providers and sockets joined to the engines and the dispatcher."""
