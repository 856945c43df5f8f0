"""Sources: code and files that users name, how they are loaded and pinned, and folders by URI."""
