"""What keeps claims off devices: the rules that are wanted, entries for agents, fences, and what Nodes say of it."""
