"""Seeds as a pure function of (root seed, episode number), and the generators that are seeded."""
