"""Request bodies: what each field may be. What is not written here is refused by its name, never ignored."""
