"""The mechanism of attention itself, shown and tested on the library's own implementation."""
