"""The engine of vector environments: it stores steps in time-major rings and gathers episodes from them."""
