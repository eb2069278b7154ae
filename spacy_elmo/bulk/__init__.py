"""Vectors of many texts: columns, and files that a restart completes, by one process or many."""
