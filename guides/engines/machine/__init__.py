"""Resources of the machine: threads, memory, and devices for shares of the rows."""
