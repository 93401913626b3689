"""Files of other systems: each module a door, imported by whoever needs it."""
