"""What the agent must not forget: its record on disk, and how it is known again when that is lost."""
