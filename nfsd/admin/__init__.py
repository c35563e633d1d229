"""Commands for administrators: they ask the running one, by its control socket."""
