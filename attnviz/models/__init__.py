"""The models that ``--model`` can name: bundled, own attention, Hugging Face, named shapes."""
