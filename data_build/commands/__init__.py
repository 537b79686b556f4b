"""The sub-commands of `specexit data`: arguments in, tables out."""
