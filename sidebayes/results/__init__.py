"""What a fit offers."""
