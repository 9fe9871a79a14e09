"""What keeps claims off devices: wanted rules, entries for agents, fences; and the conditions on Nodes."""
