"""iWARP (MPA, DDP, RDMAP) in user space over ordinary TCP sockets."""
