"""Workers in separate processes on this machine."""
