"""A second implementation of what the server computes, on numpy and Python's integers, by the rules of docs/*.md.

It is slow and says each formula once. `test_second_implementation.py` holds it against the server, bit for bit.
"""
