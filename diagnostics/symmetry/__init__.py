"""What renumbering clusters and turning axes leaves unchanged, and how draws are matched."""
