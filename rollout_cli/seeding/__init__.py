"""TODO seeding."""
