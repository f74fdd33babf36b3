"""Building blocks that models share: side information, label inference, components."""
