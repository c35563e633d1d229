"""What the server shows by HTTP: metrics, its health, and a page of what goes on."""
