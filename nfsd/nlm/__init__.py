"""NFSv3's locking: the lock manager (NLM version 4) and the server's half of the status monitor (NSM)."""
