"""The interactive page: one HTML file without requests that shows heads' maps and answers."""
