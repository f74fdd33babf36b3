"""How well links are predicted, which are in doubt, and which pairs to ask about next."""
