"""A second implementation of the server's computations, with numpy and Python's integers, by the rules of docs/*.md.

It is slow and contains each formula once. `test_second_implementation.py` compares it with the server, bit for bit.
"""
