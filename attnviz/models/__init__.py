"""What ``--model`` names: the bundled model, the own attention, Hugging Face models, named shapes."""
