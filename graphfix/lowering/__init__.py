"""Lowerings: the forms in which an index write can be expressed by standard operators, one file each."""
