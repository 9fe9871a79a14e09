"""`draco migrate`: bring settings from other tools to Draco. `draco.migration` converts; this reads and prints."""
