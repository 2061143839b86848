"""Legato's SDK."""
