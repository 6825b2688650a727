"""Captioning by the million on one machine or many: folders, lists and shards in, tables out, resumable at any moment.

One rule carries it: the inputs are listed once and cut into parts, and an input is done when the part that holds it has
been renamed into place. Whatever was running when the power went is simply done again.
"""
