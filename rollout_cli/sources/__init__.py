"""Sources: the user's code and files, which are loaded and pinned, and folders by URI."""
