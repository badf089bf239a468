"""Screens: the main one, and the modal ones over it."""
