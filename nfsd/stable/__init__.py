"""What a server must know after a restart: where it is kept, and how nothing is answered before it is kept."""
