"""A run as a page to look at: self-contained HTML with figures that answer to the hand, its summary and its pictures.

reading     run folders -> `Result`s with labels that tell them apart
accuracy, trees, matrices, members, curves, facts    `Result`s -> `Section`s: words, figures, tables
page        sections -> one HTML file; page.html, page.css and page.js are what it is made of
watching    the same page, served while the run goes on
summary     the sections' words and tables as Markdown
pictures    the main figures as PNG and SVG files
"""
