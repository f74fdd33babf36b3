"""What the data leave open: axes that turn, permute or change sign, and draws brought to one choice."""
