"""What the machine offers: threads, memory, and devices for shares of the rows."""
