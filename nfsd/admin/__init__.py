"""Commands for administrators. They ask the running server through its control socket."""
