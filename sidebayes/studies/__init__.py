"""Questions answered by many fits."""
