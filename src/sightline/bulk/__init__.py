"""Captioning many photos on one machine or many: folders, lists and shards in, tables out, continued after any stop.

The inputs are listed once and cut into parts. An input is done when the file of its part has been renamed into place;
a part that was not finished is done again.
"""
