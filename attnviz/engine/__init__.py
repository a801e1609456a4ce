"""Context managers that observe a running model and always put it back."""
