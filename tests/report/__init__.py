"""Looking at datasets: plots, films, the report, the card."""
