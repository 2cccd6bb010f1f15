"""Typed helpers for functions that `miles` (the program in C) calls: rewards, filters, generate
functions, losses and hooks. The program carries its own copy of this package and needs no
installation; install it for an editor, a type checker or the tests of your functions."""

__version__ = "0.1.0"
