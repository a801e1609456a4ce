"""Pure measures of attention weights."""
