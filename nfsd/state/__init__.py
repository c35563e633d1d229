"""NFSv4 state: clients, sessions, opens, locks, recovery. State machines without I/O; the clock is injected."""
