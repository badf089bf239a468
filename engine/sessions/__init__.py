"""Chats between their turns: those whose blocks stay in place, those on disk, and what clients may do with them."""
