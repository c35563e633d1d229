"""Commands for who runs a server: they ask the running one, by its control socket."""
