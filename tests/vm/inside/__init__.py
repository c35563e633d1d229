"""Programs that run in a guest: standard library only, except where they say otherwise."""
