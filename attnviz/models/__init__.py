"""What ``--model`` names: bundled model, own attention, Hugging Face models, named shapes."""
