"""A run as a page to look at: self-contained HTML with figures that answer to the hand, its summary and its pictures.

reading     run folders -> `Result`s: what tells them apart, and which of them can be compared
accuracy, traffic, trees, matrices, members, evidence, extras, facts    `Result`s -> `Section`s: words, figures, tables
page        sections -> one HTML file, made of what lies in `assets`
watching    the same page, served while the run goes on
summary     the sections' words and tables as Markdown
pictures    the main figures as PNG and SVG files
"""
