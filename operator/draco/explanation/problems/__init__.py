"""What is wrong with claims themselves, whatever is free."""
