"""Draws reports: documents of parts, for a terminal, pages, pictures and Markdown.

These names mean the same in every function here. On a terminal widths are in characters and heights
in lines, in a drawing both are in pixels.

theme: what the console can show. max_width: the available width. lines, columns: those available.
encoding: that of the output; characters that it lacks are escaped.
palette: the name of the colours of cells. steps: colour levels, 0 to 255; −1 leaves a cell blank.
limit: of values of either sign, the size from which colours are full; 0 for weights.
causal: whether later keys stay blank. factors: how many queries and keys make one cell of a map.
scale: the number format of values. base: the number of the first layer and head, 0 or 1.
name: of a drawing, describes it for people who cannot see it, and for links to it. gap: the blank
    between two members of a row or a column.
"""
