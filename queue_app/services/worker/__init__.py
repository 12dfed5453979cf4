"""Workers: how they register, beat and end."""
